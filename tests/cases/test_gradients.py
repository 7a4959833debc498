"""Training and derivatives: what broke in other libraries, and must not here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases.tools import ON_EDGES, WAYS, complete, edges, inputs, run
from unified_attn import (
    GAT,
    Additive,
    ALiBi,
    Causal,
    DenseBias,
    DenseMask,
    Dot,
    EdgeBias,
    Full,
    GATv2,
    Graph,
    Padding,
    PairVectors,
    RoPE,
    UnsupportedError,
    Where,
    Window,
    attention,
    attention_with_lse,
)

every_way = pytest.mark.parametrize("way", WAYS)
THREE_EDGES = edges((0, 1), (2, 1), (1, 0))
TWICE = ("reference", "reference on edges", "scatter")


# --- every provider trains on CPU

MASKS = [
    Full(),
    Causal(),
    Window(1, 1),
    Padding(torch.tensor([[True, True, False, True]])),
    DenseMask(torch.ones(4, 4, dtype=torch.bool).triu()),
    Where(lambda b, h, i, j: (i + j) % 2 == 0),
    Causal() & ~Window(0, 0) | Where(lambda b, h, i, j: i == 0),
]
BIASES: list[Any] = [
    None,
    ALiBi(2),
    RoPE(4),
    DenseBias(torch.ones(2, 4, 1)),
    Additive(lambda b, h, i, j: (i - j) * 0.1),
    EdgeBias(torch.ones(3), THREE_EDGES),
]
SCORES = [
    Dot(),
    Dot(softcap=3.0),
    Dot(sink=torch.zeros(2)),
    GAT(torch.ones(2, 4), torch.ones(2, 4)),
    GATv2(torch.ones(2, 4)),
]


@every_way
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("score", SCORES, ids=str)
def test_every_provider_trains_on_a_cpu(way: str, mask: Any, score: Any) -> None:
    """Flexible attention refuses any backward on CPU: pytorch/pytorch #148752, #169224."""
    q, k, v = inputs(4, dtype=torch.float32)
    for bias in BIASES:
        out = run(way, q, k, v, mask, bias=bias, score=score)
        for gradient in torch.autograd.grad(out.pow(2).sum(), (q, k, v)):
            assert bool(gradient.isfinite().all())
            assert bool(gradient.any())


@every_way
def test_a_step_of_training_lowers_the_loss(way: str) -> None:
    """The same: parameters of a user's module reach the optimiser."""
    torch.manual_seed(0)
    project, slope = torch.nn.Linear(8, 12), torch.nn.Parameter(torch.tensor(0.1))
    x, wanted = torch.randn(4, 6, 8), torch.randn(4, 1, 6, 4)
    bias = Additive(lambda b, h, i, j: -slope * (i - j).abs())
    optimiser = torch.optim.SGD([*project.parameters(), slope], lr=0.1)
    losses = []
    for _ in range(20):
        q, k, v = project(x)[:, None].split(4, -1)
        loss = (run(way, q, k, v, Causal(), bias=bias) - wanted).pow(2).mean()
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        assert slope.grad is not None
        optimiser.step()
    assert losses[-1] < losses[0] * 0.99


# --- first derivatives against differences


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mask", [None, Causal(), Window(1, 0)], ids=str)
def test_gradcheck_in_float64(way: str, mask: Any) -> None:
    """Without float64 nothing could be checked: pytorch/pytorch #98164."""
    q, k, v = inputs(3, batch=1)
    assert torch.autograd.gradcheck(lambda *x: run(way, *x, mask, bias=ALiBi(2) + RoPE(4)), (q, k, v))


@pytest.mark.parametrize("backend", ON_EDGES)
@pytest.mark.parametrize("kind", ["dot", "softcap", "gat", "gatv2"])
def test_gradcheck_of_everything_on_three_edges(backend: str, kind: str) -> None:
    """The same, with every tensor that a graph call takes, and the log-sum-exp."""
    q, k, v = inputs(3, batch=1)
    g = torch.Generator().manual_seed(3)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64).requires_grad_()

    values, r, s, att, src, e = draw(3, 2), draw(3, 2, 4), draw(3, 2, 4), draw(2, 4), draw(2, 4), draw(3, 2)
    graph = Graph(THREE_EDGES)

    def call(*x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, values, r, s, att, src, e = x
        score = {"dot": Dot(), "softcap": Dot(softcap=2.0), "gat": GAT(src, att, edge=e), "gatv2": GATv2(att)}[kind]
        bias = EdgeBias(values) + PairVectors(key=r, value=s)
        out, lse = attention_with_lse(q, k, v, mask=graph, bias=bias, score=score, backend=backend)
        return out, lse[:, :, :2]  # node 2 has no edge: -inf, without a gradient

    assert torch.autograd.gradcheck(call, (q, k, v, values, r, s, att, src, e))


# --- second derivatives


@pytest.mark.parametrize("way", TWICE)
@pytest.mark.parametrize("mask", [None, Causal(), DenseMask(torch.ones(3, 3, dtype=torch.bool).tril(-1))], ids=str)
def test_second_derivatives_on_three_tokens(way: str, mask: Any) -> None:
    """'derivative is not implemented' for a gradient penalty: pytorch/pytorch #116350, #98164."""
    q, k, v = inputs(3, batch=1, heads=1, dim=2)
    assert torch.autograd.gradgradcheck(lambda *x: run(way, *x, mask, bias=RoPE(2)), (q, k, v))


@pytest.mark.parametrize("backend", ["reference", "scatter"])
@pytest.mark.parametrize("kind", ["dot", "softcap", "gat", "gatv2"])
def test_second_derivatives_on_three_edges(backend: str, kind: str) -> None:
    """The same on a graph: forces from energies, SHI-Labs/NATTEN #191."""
    q, k, v = inputs(3, batch=1, heads=1, dim=2)
    g = torch.Generator().manual_seed(3)
    values = torch.randn(3, 1, generator=g, dtype=torch.float64).requires_grad_()
    att = torch.randn(1, 2, generator=g, dtype=torch.float64).requires_grad_()

    def call(q: Tensor, k: Tensor, v: Tensor, values: Tensor, att: Tensor) -> Tensor:
        score = {"dot": Dot(), "softcap": Dot(softcap=2.0), "gat": GAT(att, att), "gatv2": GATv2(att)}[kind]
        bias = EdgeBias(values)
        return attention(q, k, v, mask=Graph(THREE_EDGES), bias=bias, score=score, backend=backend)

    assert torch.autograd.gradgradcheck(call, (q, k, v, values, att))


@pytest.mark.parametrize("mask", [Graph(THREE_EDGES), Window(1, 1)], ids=["Graph", "Window"])
def test_the_fused_back_end_refuses_a_second_derivative_and_says_what_to_choose(mask: Any) -> None:
    """The same: an error that helps, rather than a wrong zero."""
    q, k, v = inputs(3)
    out = attention(q, k, v, mask=mask, backend="csr")
    (dq,) = torch.autograd.grad(out.pow(2).sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match=r"backend='scatter' or backend='reference'") as error:
        torch.autograd.grad(dq.sum(), k)
    assert error.value.backend == "csr"


@pytest.mark.parametrize("way", ["reference", "reference on edges"])
def test_forward_mode(way: str) -> None:
    """Jacobian-vector products worked in one back end only: pytorch/pytorch #116348."""
    from torch.autograd import forward_ad

    q, k, v = inputs(3)
    t = [torch.randn_like(x) for x in (q, k, v)]
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(x, y) for x, y in zip((q, k, v), t, strict=True)]
        forward = forward_ad.unpack_dual(run(way, *dual, Causal(), bias=ALiBi(2))).tangent
    _, tangent = torch.autograd.functional.jvp(lambda *x: run(way, *x, Causal(), bias=ALiBi(2)), (q, k, v), tuple(t))
    torch.testing.assert_close(forward, tangent, rtol=1e-10, atol=1e-10)


# --- large sizes


@pytest.mark.parametrize("way", ["reference", "reference on edges", "scatter", "csr"])
def test_a_batch_of_70000_tiny_rows(way: str) -> None:
    """A batch above 65535 was a launch error: pytorch/pytorch #146704, xformers #788."""
    q, k, v = (x.detach().float().expand(70000, -1, -1, -1) for x in inputs(2, batch=1, heads=1))
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    out = run(way, q, k, v, Causal())
    assert torch.equal(out, out[:1].expand_as(out))
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        torch.testing.assert_close(gradient, gradient[:1].expand_as(gradient))


def test_offsets_are_64_bit_and_too_many_edges_raise_before_any_work() -> None:
    """Indexing overflowed 32 bits, or failed in the backward alone: pytorch/pytorch #107959, #147585."""
    q = torch.zeros(1, 1, 3, 4)
    graph = Graph(THREE_EDGES, num_keys=3)
    attention(q, q, q, mask=graph)
    assert graph._list(3, 3).rows().indptr.dtype == torch.int64
    with pytest.raises(ValueError, match="holds 2147483648 edges; one graph holds at most 2147483647"):
        Graph(torch.empty(2, 2**31, dtype=torch.int32, device="meta"))
    with pytest.raises(ValueError, match="num_keys is 2147483648"):
        Graph(THREE_EDGES, num_keys=2**31)


def test_a_long_list_of_pairs_is_counted_in_python_integers() -> None:
    """The same for a window: its number of pairs is exact where 32 bits are not."""
    from unified_attn.rows import Band

    n = 2**31 - 1
    assert Band(n, n, 0, 4, 0, torch.device("cpu")).num_pairs == 5 * n - (4 + 3 + 2 + 1)


@pytest.mark.parametrize("backend", ON_EDGES)
def test_one_graph_serves_many_calls(backend: str) -> None:
    """State kept between calls must not mix sizes, dtypes or graphs."""
    shared = complete(3, 3)
    for dtype in (torch.float32, torch.float64, torch.float32):
        q, k, v = inputs(3, dtype=dtype)
        for mask in (shared, shared & Causal(), shared):
            out = attention(q, k, v, mask=mask, backend=backend)
            torch.testing.assert_close(out, run("reference", q, k, v, None if mask is shared else Causal()))


def test_transforms_of_torch_func_take_a_back_end_that_knows_them() -> None:
    """The fused operator has no rule for them (and would have taken tangents for 0): the default is another one."""
    graph = Graph(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 1]]))
    q, k, v, t = torch.randn(4, 1, 2, 3, 4, dtype=torch.float64).unbind()

    def f(x: torch.Tensor) -> torch.Tensor:
        return attention(x, k, v, mask=graph)

    slope = torch.autograd.grad(f(leaf := q.clone().requires_grad_()).sum(), leaf)[0]
    torch.testing.assert_close(torch.func.grad(lambda x: f(x).sum())(q), slope)
    step = 1e-6
    torch.testing.assert_close(torch.func.jvp(f, (q,), (t,))[1], (f(q + step * t) - f(q - step * t)) / (2 * step))
    torch.testing.assert_close(torch.vmap(f)(torch.stack([q, t])), torch.stack([f(q), f(t)]))


def test_forward_mode_through_the_fused_back_end_raises() -> None:
    """A custom operator drops tangents without a word."""
    graph = Graph(torch.tensor([[0, 1], [1, 1]]))
    x = torch.randn(1, 1, 2, 4, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        for score in (None, GAT(*torch.randn(2, 1, 4)), GATv2(torch.randn(1, 4))):
            with pytest.raises(UnsupportedError, match="no forward-mode derivative; use backend='scatter'"):
                attention(dual, x, x, mask=graph, score=score)
            out = attention(dual, x, x, mask=graph, score=score, backend="scatter")
            assert torch.autograd.forward_ad.unpack_dual(out).tangent is not None
