"""What nobody may attend changes nothing, whatever it holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.parity.cases import BACKENDS
from tests.parity.tensors import derivatives, made, qkv, some_edges
from unified_attn import (
    GAT,
    ALiBi,
    Causal,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    Padding,
    Window,
    attention_with_lse,
    explain,
    graph_attention,
)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("score", ["dot", "gat", "gatv2"])
@pytest.mark.parametrize("mask", ["graph", "window", "dense"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_masked_may_hold_anything(backend: str, mask: str, score: str, poison: float) -> None:
    q, k, v = qkv()
    values, att, other = made((20, 4), (4, 4), (4, 4), seed=5)
    seen = torch.ones(2, 7, dtype=torch.bool)
    seen[0, 2] = seen[1, 5] = seen[1, 6] = False
    asking = torch.ones(2, 7, dtype=torch.bool)
    asking[0, 3] = asking[1, 0] = False
    padding = Padding(seen, queries=asking)
    edges = some_edges(keys=6)  # node 6 is nobody's source, and node 0 nobody's target
    options = {
        "mask": {"graph": Graph(edges) & padding, "window": padding & Window(2, 2), "dense": Causal() & padding}[mask],
        "bias": EdgeBias(values) if mask == "graph" else ALiBi(4),
        "score": {"dot": Dot(), "gat": GAT(att, other), "gatv2": GATv2(att)}[score],
    }
    if explain(q, k, v, **options).reasons[backend]:
        listed, plain = backend in ("scatter", "csr"), backend in ("sdpa", "tiled")
        assert (listed and mask == "dense") or (plain and (mask == "graph" or score != "dot"))
        return
    if mask == "graph":
        seen[:, 6] = asking[:, 0] = False

    def results(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        tensors = [x.detach().requires_grad_() for x in (q, k, v)]
        learned = [values] if mask == "graph" else []
        learned += {"dot": [], "gat": [att, other], "gatv2": [att]}[score]
        out, lse = attention_with_lse(*tensors, **options, backend=backend)
        return [out, lse, *derivatives(out, [*tensors, *learned])]

    hidden = (~seen)[:, None, :, None]
    silent = (~asking)[:, None, :, None]
    clean = results(q, k, v)
    dirty = results(q.masked_fill(silent, poison), k.masked_fill(hidden, poison), v.masked_fill(hidden, poison))
    for a, b in zip(clean, dirty, strict=True):
        assert torch.equal(a, b)  # bit for bit
    assert not bool(clean[0].masked_select(silent).any())


TERMS = {
    "out of float32's range": lambda: EdgeBias(torch.tensor([0.0, 0.0, -1e300, 0.0, 0.0], dtype=torch.float64)),
    "a sum of finite terms": lambda: (
        EdgeBias(torch.tensor([0.0, 0.0, -3e38, 0.0, 0.0])[:, None].expand(5, 8))
        + EdgeBias(torch.tensor([0.0, 0.0, -3e38, 0.0, 0.0])[:, None].expand(5, 8))
    ),
}


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("backend", ["csr", "scatter", "reference"])
def test_what_becomes_minus_infinity_only_when_it_is_added_hides_too(backend: str, terms: str) -> None:
    graph = Graph(torch.tensor([[0, 1, 2, 0, 1], [0, 0, 0, 1, 1]]), num_keys=3)
    q = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    k, v = (q.clone().requires_grad_() for _ in range(2))
    with torch.no_grad():
        k[2] = v[2] = torch.nan
    out = graph_attention(q, k, v, graph, bias=TERMS[terms](), backend=backend)
    kept = graph_attention(q, k, v, graph.keep(torch.arange(5) != 2), backend=backend)
    torch.testing.assert_close(out, kept)
    torch.testing.assert_close(*(torch.autograd.grad(x.sin().sum(), [k, v]) for x in (out, kept)), rtol=1e-5, atol=1e-6)
