"""What a call needs beside its inputs: no tensor of edges x heads x features, no table of queries x keys.

Peaks are the growth of a fresh process, after kernels were compiled at a tiny size. Other libraries formed [E, H, C]
messages several times over: pyg-team/pytorch_geometric #527, #8316; or L x S scores: microsoft/Graphormer #113,
Dao-AILab/flash-attention #17.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.cases.tools import fresh
from unified_attn import (
    GAT,
    ALiBi,
    Causal,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    Padding,
    RoPE,
    Window,
    attention,
    graph_attention,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
MIB = 2**20

# Blocks of 64 KiB and more go back to the system once they are freed: how glibc reuses them differs from run to run.
PEAK = """
import ctypes
ctypes.CDLL(None).mallopt(-3, 65536)

import torch
from unified_attn import *

def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024

def growth(step, tiny, real):
    step(*tiny)
    step(*tiny)
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
    before = status("VmRSS")
    step(*real)
    print(status("VmHWM") - before)
"""

ON_GRAPH = """
def make(n, e):
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(n, 4, 16, generator=g).requires_grad_() for _ in range(3)]
    graph = Graph(torch.randint(0, n, (2, e), generator=g), num_keys=n)
    return (*x, graph, torch.randn(e, 4, generator=g).requires_grad_())

def step(q, k, v, graph, values):
    score = {score}
    out = graph_attention(q, k, v, graph, score=score, bias={bias}, backend="csr")
    out.backward(out)

growth(step, make(50, 500), make(20000, 500000))
"""

IN_WINDOW = """
def make(n):
    return [torch.randn(1, 1, n, 8, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)]

def step(q, k, v):
    out = attention(q, k, v, mask={mask}, bias={bias}, backend={backend})
    out.backward(out)

growth(step, make(600), make(32768))  # 600: few enough pairs to run sparsely too
"""


@linux
@pytest.mark.parametrize("bias", [pytest.param("None", marks=pytest.mark.slow), "EdgeBias(values)"])
@pytest.mark.parametrize(
    "score",
    [
        pytest.param("Dot()", id="Dot"),
        pytest.param("GATv2(torch.ones(4, 16))", id="GATv2"),
        pytest.param("GAT(torch.ones(4, 16), torch.ones(4, 16))", id="GAT", marks=pytest.mark.slow),
    ],
)
def test_a_graph_of_500000_edges_needs_less_than_one_message_tensor(score: str, bias: str) -> None:
    one = 500_000 * 4 * 16 * 4  # [E, H, C] in float32: 122 MiB
    assert int(fresh(PEAK + ON_GRAPH.format(score=score, bias=bias))) < one


WITH_FEATURES = """
def make(n, e):
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(n, 4, 16, generator=g).requires_grad_() for _ in range(3)]
    graph = Graph(torch.randint(0, n, (2, e), generator=g), num_keys=n)
    weights = [torch.randn(64, 16, generator=g).requires_grad_() for _ in range(2)]
    return (*x, graph, torch.randn(e, 16, generator=g).requires_grad_({learned}), *weights)

def step(q, k, v, graph, edge_attr, key, value):
    out = graph_attention(q, k, v, graph, score={score}, bias=EdgeProjection(edge_attr, {weights}), backend="csr")
    out.backward(out)

growth(step, make(2000, 40000), make(20000, 500000))  # 40000: fewer would be projected at once, by other kernels
"""


@linux
@pytest.mark.parametrize("learned", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("score", "weights"), [("Dot()", "key, value"), ("GATv2(torch.ones(4, 16))", "key")], ids=["Dot", "GATv2"]
)
def test_features_of_500000_edges_need_less_than_one_message_tensor(score: str, weights: str, learned: bool) -> None:
    """Layers with ``edge_dim`` formed [E, H, C] before they added it."""
    one = 500_000 * 4 * 16 * 4  # [E, H, C] in float32: 122 MiB
    code = PEAK + WITH_FEATURES.format(score=score, weights=weights, learned=learned)
    assert int(fresh(code)) < one


@linux
@pytest.mark.parametrize("backend", ["None", pytest.param("'csr'", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("mask", "bias"),
    [
        ("Window(64, 0)", "None"),
        pytest.param("Window(64, 0)", "RoPE(8)", marks=pytest.mark.slow),
    ],
)
def test_a_window_over_32768_tokens_needs_less_than_200_mb(mask: str, bias: str, backend: str) -> None:
    assert int(fresh(PEAK + IN_WINDOW.format(mask=mask, bias=bias, backend=backend))) < 200e6


LISTS = """
def make(n):
    return [torch.randn(1, 1, n, 8, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)]

def step(q, k, v):
    n = q.shape[2]
    out = attention(q, k, v, mask={mask}, backend="csr")
    out.backward(out)

growth(step, make(600), make({length}))
"""


@linux
@pytest.mark.parametrize(
    "mask",
    [
        pytest.param("Longformer(64, range(4))", marks=pytest.mark.slow),
        pytest.param("BigBird(64, 1, 3, 3, seed=0)", marks=pytest.mark.slow),
        pytest.param("Dilated(64, 4)", marks=pytest.mark.slow),
        pytest.param("Documents(torch.arange(n) // 512)", marks=pytest.mark.slow),
        "GlobalTokens(range(8))",
    ],
)
def test_memory_of_a_list_is_linear_in_its_length(mask: str) -> None:
    each = [int(fresh(PEAK + LISTS.format(mask=mask, length=n))) / n for n in (4096, 16384)]
    # A table of all pairs would make it 4. Of one megabyte, 256 bytes a token, part is found in what was freed before.
    assert each[1] < 1.5 * max(each[0], 400)
    assert each[1] < 16_000  # bytes a token; a bool a pair would be 16 384


@linux
def test_a_wide_window_over_32768_tokens_needs_less_than_100_mb() -> None:
    """Four numbers of 32 bits a pair: key, id, and both of the transpose."""
    assert int(fresh(PEAK + LISTS.format(mask="Window(64, 64)", length=32768))) < 100e6


# --- structure: what is created, by number of elements


class Created(TorchDispatchMode):
    """Notes the number of elements of every new tensor, with the operator that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, set[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, Tensor)}
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and x.numel() and x.untyped_storage().data_ptr() not in known:
                self.sizes.setdefault(x.untyped_storage().nbytes() // x.element_size(), set()).add(str(func))
        return out


def created(step: Callable[[], Any]) -> dict[int, set[str]]:
    with Created() as mode:
        step()
    return mode.sizes


# Primes, so that a product is recognised: N nodes, E edges, H heads, D features, and Dv of values.
N, E, H, D, DV = 101, 1009, 3, 8, 16


def graph_step(backend: str, score: str, bias: str, dropout_p: float = 0.0) -> Callable[[], None]:
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(N, H, D, generator=g).requires_grad_() for _ in range(2))
    v = torch.randn(N, H, DV, generator=g).requires_grad_()
    att = torch.randn(H, D, generator=g).requires_grad_()
    values = torch.randn(E, H, generator=g).requires_grad_()
    graph = Graph(torch.randint(0, N, (2, E), generator=g), num_keys=N)
    how = {"Dot": Dot(), "GATv2": GATv2(att), "GAT": GAT(att, att.flip(0))}[score]
    prior = {"none": None, "EdgeBias": EdgeBias(values), "ALiBi": ALiBi(H), "RoPE": RoPE(D)}[bias]

    def step() -> None:
        out = graph_attention(q, k, v, graph, score=how, bias=prior, dropout_p=dropout_p, backend=backend)
        out.backward(out)

    return step


@pytest.mark.parametrize("score", ["Dot", "GATv2", "GAT"])
@pytest.mark.parametrize("bias", ["none", "EdgeBias", "ALiBi", "RoPE"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_no_operator_of_csr_makes_a_tensor_of_edges_by_features(score: str, bias: str, dropout_p: float) -> None:
    sizes = created(graph_step("csr", score, bias, dropout_p))
    assert max(sizes) < E * D, {n: sizes[n] for n in sizes if n >= E * D}
    assert N * H * DV in sizes  # the output was seen


@pytest.mark.parametrize("score", ["Dot", "GATv2"])
def test_this_way_of_looking_finds_the_messages_of_scatter(score: str) -> None:
    assert E * H * DV in created(graph_step("scatter", score, "none"))


@pytest.mark.parametrize("backend", [None, "csr"])
def test_a_window_never_makes_a_table(backend: str | None) -> None:
    length, left = 499, 7
    q, k, v = (torch.randn(1, 2, length, D, requires_grad=True) for _ in range(3))

    def step() -> None:
        out = attention(q, k, v, mask=Window(left, 0), bias=ALiBi(2), backend=backend)
        out.backward(out)

    sizes = created(step)
    assert max(sizes) <= (left + 1) * length * 2  # a value a pair and head


def test_rules_beside_a_window_never_make_a_table() -> None:
    length = 499
    q, k, v = (torch.randn(2, 1, length, D, requires_grad=True) for _ in range(3))
    keep = Padding(torch.arange(length)[None] < torch.tensor([[300], [length]]))

    def step() -> None:
        out = attention(q, k, v, mask=Window(7, 7) & keep & Causal(), backend="csr")
        out.backward(out)

    assert max(created(step)) < length * length / 4


def test_nothing_is_copied_for_layout_alone() -> None:
    x = torch.randn(N, 3, H, D).unbind(1)  # strided views of one tensor, as a fused projection gives them
    q, k, v = (y.transpose(0, 1)[None] for y in x)
    graph = Graph(torch.randint(0, N, (2, E)), num_keys=N)
    attention(q, k, v, mask=graph, backend="csr")
    sizes = created(lambda: attention(q, k, v, mask=graph, backend="csr"))
    assert sum(len(sizes[n]) for n in sizes if n >= N * H * D) == 1, sizes  # the output alone
