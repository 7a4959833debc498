"""Heads of eight floats, eight at a time: the same as the definition in float64, wherever they are taken and not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from graphs.generators import power_law
from unified_attn import (
    GAT,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    PairVectors,
    RelativeVectors,
    Window,
    attention_with_lse,
    graph_attention,
)
from unified_attn.kernels import csr_launch, csr_ops

NODES, EDGES = 40, 700  # rows from none to some hundred pairs: more than one chunk


def graph() -> Graph:
    edge_index = power_law(NODES, EDGES, exponent=1.2, seed=0)
    many = torch.stack([torch.arange(300) % NODES, torch.full((300,), 7)])
    return Graph(torch.cat([edge_index, many], 1), num_keys=NODES)


def leaves(heads: int, size: int = 8, value_size: int = 8) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "q": normal(NODES, heads, size),
        "k": normal(NODES, heads, size),
        "v": normal(NODES, heads, value_size),
        "a": normal(heads, size),
        "b": normal(heads, size),
        "e": normal(EDGES + 300, heads),
        "r": normal(EDGES + 300, heads, size),
    }


CASES: dict[str, Any] = {
    "dot": lambda x: ((x["q"], x["k"], x["v"]), {}),
    "dot, keys are values": lambda x: ((x["q"], x["k"], x["k"]), {}),
    "dot, one tensor": lambda x: ((x["k"], x["k"], x["k"]), {"scale": 1.0}),
    "dot with a cap": lambda x: ((x["q"], x["k"], x["v"]), {"score": Dot(softcap=2.0)}),
    "dot with a bias": lambda x: ((x["q"], x["k"], x["v"]), {"bias": EdgeBias(x["e"])}),
    "dot with a number a pair": lambda x: ((x["q"], x["k"], x["v"]), {"bias": EdgeBias(x["e"][:, 0])}),
    "GATv2 with a bias": lambda x: ((x["q"], x["k"], x["k"]), {"bias": EdgeBias(x["e"]), "score": GATv2(x["a"])}),
    "GAT with a bias": lambda x: ((x["k"], x["k"], x["k"]), {"bias": EdgeBias(x["e"]), "score": GAT(x["a"], x["b"])}),
    "dot with vectors of keys": lambda x: ((x["q"], x["k"], x["v"]), {"bias": PairVectors(key=x["r"])}),
    "dot with vectors of values": lambda x: ((x["q"], x["k"], x["v"]), {"bias": PairVectors(value=x["r"])}),
    "GATv2": lambda x: ((x["q"], x["k"], x["v"]), {"score": GATv2(x["a"])}),
    "GATv2, keys are values": lambda x: ((x["q"], x["k"], x["k"]), {"score": GATv2(x["a"])}),
    "GAT": lambda x: ((x["k"], x["k"], x["k"]), {"score": GAT(x["a"], x["b"])}),
    "GAT with vectors of keys": lambda x: (
        (x["q"], x["k"], x["v"]),
        {"score": GAT(x["a"], x["b"]), "bias": PairVectors(key=x["r"])},
    ),
    "GAT with an edge's own": lambda x: ((x["q"], x["k"], x["v"]), {"score": GAT(x["a"], x["b"], edge=x["e"])}),
}


def run(name: str, given: dict[str, Tensor], dtype: torch.dtype, backend: str, p: float) -> list[Tensor]:
    """Output and gradients."""
    x = {key: value.to(dtype).requires_grad_() for key, value in given.items()}
    inputs, options = CASES[name](x)
    torch.manual_seed(0)
    out = graph_attention(*inputs, graph(), backend=backend, dropout_p=p, **options)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    grads = torch.autograd.grad(out, list(x.values()), cotangent, allow_unused=True)
    return [out.detach(), *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("heads", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (12, 24))])
def test_equal_to_float64(name: str, heads: int, p: float) -> None:
    given = leaves(heads)
    for got, right in zip(
        run(name, given, torch.float32, "csr", p), run(name, given, torch.float64, "reference", p), strict=True
    ):
        assert float((got - right).abs().max()) < 3e-6 * float(right.abs().max())


@pytest.mark.parametrize("name", ["dot", "GATv2", "GAT"])
def test_equal_to_one_head_after_the_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The general path of the same kernels, and rows that are cut into pieces."""
    given = leaves(8)
    eight = run(name, given, torch.float32, "csr", 0.0)
    for patched, value in (("packed", lambda *_: False), ("_PIECE_WORK", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(csr_launch, patched, value)
            patch.setattr(csr_ops, "_facts", csr_launch.Plans())
            for a, b in zip(run(name, given, torch.float32, "csr", 0.0), eight, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


TAKEN = {
    "heads of eight": (lambda x: x, True),
    "heads apart": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), False),
    "heads with gaps": (lambda x: torch.cat([x, x], -1)[..., :8], False),
    "seven heads": (lambda x: x[:, :7], False),
    "float64": (lambda x: x.double(), False),
}


@pytest.mark.parametrize("layout", TAKEN)
def test_where_heads_are_taken_together(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the result is right either way, with the gradient of the log-sum-exp too."""
    change, taken = TAKEN[layout]
    given = leaves(8)
    seen = []
    packed = csr_launch.packed
    with monkeypatch.context() as patch:
        patch.setattr(csr_launch, "packed", lambda *x: seen.append(packed(*x)) or seen[-1])
        patch.setattr(csr_ops, "_facts", csr_launch.Plans())
        found = []
        for backend, dtype in (("csr", None), ("reference", torch.float64)):
            q, k, v = (change(given[name]) for name in "qkv")
            x = [t.to(dtype or t.dtype).detach().requires_grad_() for t in (q, k, v)]
            out, lse = attention_with_lse(*(t.transpose(0, 1)[None] for t in x), mask=graph(), backend=backend)
            lse = lse.masked_fill(lse == -torch.inf, 0.0)
            found.append([out.detach(), lse.detach(), *torch.autograd.grad(out.sum() + (lse * lse).sum(), x)])
    for got, right in zip(*found, strict=True):
        assert float((got - right).abs().max()) < 3e-6 * float(right.abs().max())
    assert any(seen) == taken


def test_vectors_of_a_table_that_pairs_share() -> None:
    """Contracted to a number a head, they are read for eight heads at once; partial sums of many blocks are joined."""
    found = []
    for backend, dtype in (("csr", torch.float32), ("scatter", torch.float64)):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(600, 8, 8, generator=generator).to(dtype).requires_grad_() for _ in range(3))
        a, b = (torch.randn(8, 8, generator=generator).to(dtype).requires_grad_() for _ in range(2))
        table = RelativeVectors(5, 8, value=False).to(dtype)
        assert table.key is not None
        table.key.data = torch.randn(11, 8, generator=generator).to(dtype)
        out = graph_attention(q, k, v, Window(9, 9), bias=table, score=GAT(a, b), backend=backend)
        found.append([out.detach(), *torch.autograd.grad(out.sin().sum(), [q, k, v, a, b, table.key])])
    for got, right in zip(*found, strict=True):
        assert float((got - right).abs().max()) < 1e-5 * float(right.abs().max())
