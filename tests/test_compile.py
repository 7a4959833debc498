"""The public call under `torch.compile`, whole (no graph break) and without a compilation a size; and export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tests.cases.tools import ON_EDGES, edges
from unified_attn import (
    GAT,
    Additive,
    ALiBi,
    Bias,
    BigBird,
    Causal,
    DenseBias,
    Dilated,
    Documents,
    Dot,
    EdgeBias,
    GATv2,
    GlobalTokens,
    Graph,
    Longformer,
    Mask,
    NodeTypes,
    Padding,
    PairVectors,
    RoPE,
    Where,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
    graph_attention,
)
from unified_attn.rows import compress, edge_ends, run_rows, transpose_rows

SIZES = [(5, 9), (6, 11), (8, 3), (1, 1), (4, 0)]
EDGES = edges((0, 1), (1, 2), (2, 3), (0, 3), (4, 4), (3, 4))


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def whole(function: Callable[..., Any], how: str = "eager", dynamic: bool | None = None) -> Callable[..., Any]:
    return torch.compile(function, backend=how, fullgraph=True, dynamic=dynamic)


def nodes(count: int, seed: int = 0) -> Tensor:
    """Features `[1, 2, N, 4]` that ask for a gradient."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, count, 4, generator=g).requires_grad_()


def random_edges(count: int, number: int) -> Tensor:
    return torch.randint(0, max(count, 1), (2, number), generator=torch.Generator().manual_seed(number))


def assert_like(compiled: Callable[..., Tensor], plain: Callable[..., Tensor], *arguments: Any) -> None:
    """Equal outputs, and equal gradients of the arguments that ask for one."""
    leaves = [x for x in arguments if isinstance(x, Tensor) and x.requires_grad]
    got, want = compiled(*arguments), plain(*arguments)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    if leaves and want.numel():
        wave = torch.linspace(-1.0, 2.0, want.numel()).reshape(want.shape)
        pairs = (torch.autograd.grad((out * wave).sum(), leaves) for out in (got, want))
        for a, b in zip(*pairs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# --- what can be compiled

ATT = torch.linspace(-1.0, 1.0, 8).reshape(2, 4)
KEEP = torch.tensor([[True, True, False, True, True]])


def on_graph(**options: Any) -> Callable[..., Tensor]:
    """A call on a graph made outside of the compiled function."""
    graph = Graph(EDGES, num_keys=5)
    hides = options.pop("mask", None)
    mask = graph if hides is None else graph & hides
    return lambda q, backend: attention(q, q, q, mask=mask, backend=backend, **options)


def on_rule(mask: Any, **options: Any) -> Callable[..., Tensor]:
    return lambda q, backend: attention(q, q, q, mask=mask, backend=backend, **options)


GRAPHS = {
    "bare": on_graph(),
    "ALiBi": on_graph(bias=ALiBi(2)),
    "RoPE": on_graph(bias=RoPE(4)),
    "EdgeBias": on_graph(bias=EdgeBias(torch.linspace(-1, 1, 6))),
    "EdgeBias with its edges": on_graph(bias=EdgeBias(torch.linspace(-1, 1, 6), EDGES)),
    "PairVectors": on_graph(bias=PairVectors(torch.ones(6, 2, 4), torch.ones(6, 2, 4))),
    "Causal": on_graph(mask=Causal()),
    "Padding": on_graph(mask=Padding(KEEP)),
    "Where and Additive": on_graph(
        mask=Where(lambda b, h, i, j: (i + j) % 3 != 0), bias=Additive(lambda b, h, i, j: -0.1 * (i - j).abs())
    ),
    "softcap": on_graph(score=Dot(softcap=2.0)),
    "sink": on_graph(score=Dot(sink=torch.zeros(2))),
    "GAT": on_graph(score=GAT(ATT, ATT.flip(0))),
    "GAT with edges": on_graph(score=GAT(ATT, ATT.flip(0), edge=torch.linspace(-1, 1, 12).reshape(6, 2))),
    "GATv2": on_graph(score=GATv2(ATT)),
}
RULES = {
    "Window": on_rule(Window(1, 1)),
    "Window and ALiBi": on_rule(Window(2, 0), bias=ALiBi(2)),
    "Window or Window": on_rule(Window(1, 0) | Window(0, 2)),
}
DENSE = {
    "nothing": on_rule(None),
    "Causal and RoPE": on_rule(Causal(), bias=RoPE(4)),
    "Padding and ALiBi": on_rule(Padding(KEEP), bias=ALiBi(2)),
    "tensor and DenseBias": on_rule(KEEP[0], bias=DenseBias(torch.ones(2, 5, 1))),
    "Where and Additive": on_rule(
        ~Where(lambda b, h, i, j: i == j), bias=Additive(lambda b, h, i, j: torch.sin(i - j + 0.5))
    ),
    "GATv2": on_rule(Causal(), score=GATv2(ATT)),
    "edges on a dense mask": on_rule(Causal(), bias=EdgeBias(torch.linspace(-1, 1, 6), EDGES)),
}
CALLS = [
    *((f"{backend}: {name}", call, backend) for name, call in GRAPHS.items() for backend in ON_EDGES),
    *((f"{backend}: {name}", call, backend) for name, call in RULES.items() for backend in ON_EDGES),
    *((f"reference: dense, {name}", call, "reference") for name, call in DENSE.items()),
]  # fmt: skip
QUICK = {
    "csr: bare",
    "csr: GAT with edges",
    "csr: Where and Additive",
    "csr: Window and ALiBi",
    "scatter: EdgeBias",
    "scatter: Padding",
    "scatter: GATv2",
    "reference: dense, Causal and RoPE",
    "reference: dense, Padding and ALiBi",
}


@pytest.mark.parametrize("how", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("call", "backend"),
    [
        pytest.param(call, backend, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, call, backend in CALLS
    ],
)
def test_a_call_compiles_whole(how: str, call: Callable[..., Tensor], backend: str) -> None:
    plain = lambda q: call(q, backend)  # noqa: E731
    assert_like(whole(plain, how), plain, nodes(5))


def test_quick_calls_exist() -> None:
    assert {name for name, _, _ in CALLS} >= QUICK


FLAGS = torch.zeros(2, 9, dtype=torch.bool).index_fill(1, torch.tensor([0, 5]), True)
LISTED: dict[str, Callable[[], Mask]] = {
    "Longformer": lambda: Longformer(2, [0]),
    "Longformer, tokens that vary": lambda: Longformer(2, FLAGS),
    "BigBird": lambda: BigBird(2, 1, 3, 1, seed=0),
    "Dilated": lambda: Dilated(2, 3),
    "Documents": lambda: Documents(torch.arange(9) // 3),
    "Documents that vary": lambda: Documents(torch.arange(18).reshape(2, 9) // 3),
    "GlobalTokens": lambda: GlobalTokens([0]),
}
ADDED: dict[str, Callable[[], Bias | None]] = {
    "nothing": lambda: None,
    "ALiBi": lambda: ALiBi(2),
    "NodeTypes": lambda: NodeTypes(3, 2)(torch.arange(9) % 3, torch.arange(9) % 2),
}
QUICK_LISTED = {
    "Longformer and ALiBi",
    "Longformer, tokens that vary and nothing",
    "Documents & Causal and NodeTypes",
}


@pytest.mark.parametrize("how", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("mask", "bias", "causal"),
    [
        pytest.param(mask, bias, causal, id=name, marks=[] if name in QUICK_LISTED else pytest.mark.slow)
        for mask in LISTED
        for bias in ADDED
        for causal in (False, True)
        for name in [f"{mask}{' & Causal' if causal else ''} and {bias}"]
    ],
)
def test_a_list_whose_length_values_decide_compiles(mask: str, bias: str, causal: bool, how: str) -> None:
    """What is asked of each of its pairs has a length that a compiler does not know."""
    rule = LISTED[mask]() & Causal() if causal else LISTED[mask]()
    added = ADDED[bias]()

    def plain(q: Tensor) -> Tensor:
        return attention(q, q, q, mask=rule, bias=added, backend="csr")

    x = torch.randn(2, 2, 9, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert_like(whole(plain, how), plain, x)


@pytest.mark.parametrize("dynamic", [None, True])
def test_alibi_is_made_inside_of_compiled_code(dynamic: bool | None) -> None:
    def plain(q: Tensor) -> Tensor:
        return attention(q, q, q, bias=ALiBi(q.shape[1]))

    assert_like(whole(plain, dynamic=dynamic), plain, nodes(5))


@pytest.mark.parametrize("backend", ["csr", pytest.param("scatter", marks=pytest.mark.slow)])
def test_a_call_that_chooses_its_back_end_compiles(backend: str) -> None:
    def plain(q: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        graph = Graph(e)
        out, lse = attention_with_lse(q, q, q, mask=graph)
        flat = q[0].transpose(0, 1)
        return out, lse, attention_weights(q, q, mask=graph), graph_attention(flat, flat, flat, graph)

    for got, want in zip(whole(plain)(nodes(5), EDGES), plain(nodes(5), EDGES), strict=True):
        torch.testing.assert_close(got, want)


# --- sizes that change


def compilations(function: Callable[..., Any]) -> int:
    return len(_debug_get_cache_entry_list(function.__code__))


@pytest.mark.parametrize(
    ("how", "backend"),
    [
        ("eager", "csr"),
        ("aot_eager", "csr"),
        ("eager", "scatter"),
        pytest.param("eager", "reference", marks=pytest.mark.slow),
        pytest.param("aot_eager", "scatter", marks=pytest.mark.slow),
        pytest.param("aot_eager", "reference", marks=pytest.mark.slow),
    ],
)
def test_graphs_of_growing_sizes_compile_once(how: str, backend: str) -> None:
    """Layers recompiled for each batch and broke at custom kernels: pyg-team/pytorch_geometric #9603, #8467.

    0 and 1 are sizes that torch itself compiles apart.
    """

    def layer(q: Tensor, edge_index: Tensor) -> Tensor:
        return attention(q, q, q, mask=Graph(edge_index), bias=ALiBi(2), backend=backend)

    compiled = whole(layer, how, dynamic=True)
    counts = []
    for count, number in SIZES:
        assert_like(compiled, layer, nodes(count), random_edges(count, number))
        counts.append(compilations(layer))
    assert counts[:3] == [1, 1, 1]
    assert counts[-1] <= 3


@pytest.mark.parametrize("kind", ["GATv2", pytest.param("Dot", marks=pytest.mark.slow)])
def test_graphs_with_features_of_growing_sizes_compile_once(kind: str) -> None:
    """The same with a value and a vector an edge, whose sizes change too."""

    def layer(q: Tensor, edge_index: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        score = GATv2(ATT) if kind == "GATv2" else Dot()
        bias = EdgeBias(values) + PairVectors(vectors, vectors)
        return attention(q, q, q, mask=Graph(edge_index), bias=bias, score=score)

    compiled = whole(layer, dynamic=True)
    for count, number in SIZES[:3]:
        values = torch.linspace(-1, 1, number * 2).reshape(number, 2).requires_grad_()
        vectors = torch.linspace(-1, 1, number * 8).reshape(number, 2, 4).requires_grad_()
        assert_like(compiled, layer, nodes(count), random_edges(count, number), values, vectors)
    assert compilations(layer) == 1


def test_a_graph_made_outside_compiles_once_a_size() -> None:
    """Torch takes the sizes of a module's buffers for constants: where they change, a graph is best made inside."""

    def layer(q: Tensor, graph: Graph) -> Tensor:
        return attention(q, q, q, mask=graph)

    compiled = whole(layer, dynamic=True)
    for count, number in SIZES[:3]:
        graph = Graph(random_edges(count, number), num_keys=count)
        for _ in range(2):
            assert_like(compiled, layer, nodes(count), graph)
    assert compilations(layer) == 3


def test_the_default_back_end_of_a_window_under_dynamic_shapes() -> None:
    """The rule compares sizes that a compiler does not know yet; its words must hold no number to format."""

    def layer(q: Tensor) -> Tensor:
        return attention(q, q, q, mask=Window(2, 1))

    compiled = whole(layer, dynamic=True)
    for length in (30, 33, 40):
        assert_like(compiled, layer, nodes(length))


@pytest.mark.parametrize("backend", ["csr", "scatter", pytest.param("reference", marks=pytest.mark.slow)])
def test_a_window_over_growing_lengths_compiles_at_most_twice(backend: str) -> None:
    """The list of a window is made inside the compiled code, without a size that torch cannot know."""

    def layer(q: Tensor) -> Tensor:
        return attention(q, q, q, mask=Window(2, 1), backend=backend)

    compiled = whole(layer)
    for length in (7, 9, 12, 20, 40):
        assert_like(compiled, layer, nodes(length))
    assert compilations(layer) <= 2


def test_causal_attention_over_growing_lengths_compiles_at_most_twice() -> None:
    def layer(q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k, mask=Causal(), bias=ALiBi(2) + RoPE(4))

    compiled = whole(layer)
    for length in (7, 9, 12, 20):
        assert_like(compiled, layer, nodes(length), nodes(length + 3, seed=1))
    assert compilations(layer) <= 2


# --- errors and randomness under compilation


@pytest.mark.parametrize("backend", ["csr", "scatter"])
def test_an_index_out_of_range_raises_in_compiled_code(backend: str) -> None:
    compiled = whole(lambda q, e: attention(q, q, q, mask=Graph(e), backend=backend))
    compiled(nodes(5), EDGES)
    with pytest.raises(ValueError, match="holds 9 at edge 0, but there are 5 keys"):
        compiled(nodes(5), EDGES + 9)


def test_dropout_in_compiled_code_draws_anew() -> None:
    compiled = whole(lambda q: attention(q, q, q, mask=Window(2, 2), dropout_p=0.5, backend="csr"))
    x = nodes(8)
    torch.manual_seed(0)
    first = compiled(x)
    assert not torch.equal(first, compiled(x))
    torch.manual_seed(0)
    assert torch.equal(first, compiled(x))


# --- inductor


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["csr", "scatter", "reference"])
def test_inductor(backend: str) -> None:
    def layer(q: Tensor, edge_index: Tensor, values: Tensor) -> Tensor:
        bias = EdgeBias(values) + ALiBi(2) + RoPE(4)
        return attention(q, q, q, mask=Graph(edge_index), bias=bias, score=Dot(softcap=3.0), backend=backend)

    values = torch.linspace(-1, 1, 12).reshape(6, 2).requires_grad_()
    assert_like(whole(layer, "inductor"), layer, nodes(5), EDGES, values)


# --- custom operators and export


def test_opcheck_of_the_operators_that_list_pairs() -> None:
    """A kernel traced on fake tensors was an internal assertion: rusty1s/pytorch_scatter through torch.compile."""
    query, key = torch.tensor([1, 2, 3, 3, 4, 4]), torch.tensor([0, 1, 2, 0, 4, 3])
    nothing = torch.zeros(0, dtype=torch.int64)
    for index, sizes in ((EDGES, (5, 5)), (EDGES.int(), (7, 6)), (torch.zeros(2, 0, dtype=torch.int64), (0, 3))):
        torch.library.opcheck(edge_ends, (index, *sizes))
    for ends in ((query, key, 5, 6), (nothing, nothing, 0, 0), (nothing, nothing, 3, 2)):
        torch.library.opcheck(compress, ends)
    start, count = torch.tensor([[0, 3], [2, 0]]), torch.tensor([[2, 1], [1, 0]])
    none = torch.zeros(0, 2, dtype=torch.int64)
    for runs in ((start, count, None, 4), (start, count, torch.arange(4), None), (none, none, None, 0)):
        torch.library.opcheck(run_rows, runs)
    for indptr, col, size in ((torch.tensor([0, 2, 3]), query[:3].int(), 5), (torch.tensor([0]), nothing.int(), 0)):
        torch.library.opcheck(transpose_rows, (indptr, col, size))


def registered() -> set[str]:
    return {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("unified_attn::")
    }


def test_every_custom_operator_has_a_fake_and_no_hidden_mutation() -> None:
    assert registered() >= {"edge_ends", "run_rows", "transpose_rows", "compress", "csr_forward", "csr_backward"}
    for name in registered():
        schema = getattr(torch.ops.unified_attn, name).default._schema
        assert not schema.is_mutable, name
        assert torch._library.utils.has_fake_kernel(getattr(torch.ops.unified_attn, name).default), name


class Layer(nn.Module):
    """A tiny layer as users write one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.bias = ALiBi(2) + RoPE(4)
        self.mask = Causal()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return attention(q, k, v, mask=self.mask, bias=self.bias).transpose(1, 2).flatten(2)


class GraphLayer(nn.Module):
    """The same on a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.att = nn.Parameter(torch.ones(2, 4))

    def forward(self, x: Tensor, edge_index: Tensor, values: Tensor) -> Tensor:
        h = self.project(x).unflatten(-1, (2, 4))
        return graph_attention(h, h, h, Graph(edge_index), bias=EdgeBias(values), score=GATv2(self.att)).flatten(1)


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_a_layer_can_be_exported(strict: bool) -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    layer = Layer()
    exported = torch.export.export(layer, (x,), strict=strict).module()
    torch.testing.assert_close(exported(x), layer(x))


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_a_graph_layer_can_be_exported_with_open_sizes(strict: bool) -> None:
    x, values = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.linspace(-1, 1, 6)
    layer = GraphLayer()
    n, e = torch.export.Dim("n", min=2), torch.export.Dim("e", min=2)
    exported = torch.export.export(
        layer, (x, EDGES, values), dynamic_shapes=({0: n}, {1: e}, {0: e}), strict=strict
    ).module()
    torch.testing.assert_close(exported(x, EDGES, values), layer(x, EDGES, values))
    more = torch.randn(9, 8, generator=torch.Generator().manual_seed(1))
    index = random_edges(9, 20)
    values = torch.linspace(-1, 1, 20)
    torch.testing.assert_close(exported(more, index, values), layer(more, index, values))
