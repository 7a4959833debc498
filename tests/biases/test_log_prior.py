"""Log priors: weights proportional to p times the exponential of the score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases.tools import INF, ON_EDGES, WAYS, assert_same, close, complete, edges, formula, inputs, run, weights
from unified_attn import Causal, Graph, LogPrior, attention, attention_weights

every_way = pytest.mark.parametrize("way", WAYS)
on_edges = pytest.mark.parametrize("backend", ON_EDGES)
EDGES = edges((0, 1), (2, 1), (1, 0), (3, 3), (0, 1))


def prior(*shape: int) -> Tensor:
    """Positive numbers, and the first of each row 0."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    return values.masked_fill(torch.arange(shape[-1] if shape else 1).reshape(values.shape[-1:]) == 0, 0.0)


@every_way
def test_weights_are_the_prior_where_the_content_says_nothing(way: str) -> None:
    close(weights(way, 1, 3, bias=LogPrior(torch.tensor([0.2, 0.3, 0.0])))[0, 0, 0], [0.4, 0.6, 0.0], atol=1e-6)


@every_way
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 1, 4), (2, 2, 3, 4), (2, 1, 1, 4), (1, 1, 3, 4)], ids=str)
def test_a_table_against_the_formula(way: str, shape: tuple[int, ...]) -> None:
    q, k, v = inputs(3, 4)
    p = prior(*shape).requires_grad_()
    given = p if way == "reference" else p[(None,) * (4 - p.dim())]  # beside a graph one or two dimensions are edges
    some = torch.where(p > 0, p, 1.0).log()
    want = formula(q, k, v, (p > 0).expand(2, 2, 3, 4), some)
    assert_same(run(way, q, k, v, bias=LogPrior(given)), want, q, k, v, p)


@on_edges
@pytest.mark.parametrize("heads", [(), (2,), (1,)], ids=str)
def test_a_prior_of_edges(backend: str, heads: tuple[int, ...]) -> None:
    """Parallel edges each bring their own share."""
    q, k, v = inputs(4)
    p = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5], dtype=torch.float64).reshape(5, *[1] * len(heads))
    p = p.expand(5, *heads).clone().requires_grad_()
    out = attention(q, k, v, mask=Graph(EDGES), bias=LogPrior(p), backend=backend)
    table = torch.zeros(2, 4, 4, dtype=torch.float64)
    columns = p.reshape(5, -1).t().expand(2, 5)
    for e, (source, target) in enumerate(EDGES.t().tolist()):
        table = table.index_put(
            (torch.arange(2), torch.tensor(target), torch.tensor(source)), columns[:, e], accumulate=True
        )
    want = formula(q, k, v, table > 0, torch.where(table > 0, table, 1.0).log())
    assert_same(out, want, q, k, v, p)
    shares = attention_weights(q * 0, k, mask=Graph(EDGES), bias=LogPrior(p))[0, 0]
    close(shares, torch.tensor([0.5 / 3, 1.0 / 3, 1.0, 0.0, 1.5 / 3], dtype=torch.float64), atol=1e-9)


@every_way
def test_a_zero_hides_and_has_gradient_zero(way: str) -> None:
    q, k, v = inputs(3)
    p = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).requires_grad_()
    k.data[:, :, 0] = v.data[:, :, 0] = float("nan")  # nobody reads it
    out = run(way, q, k, v, bias=LogPrior(p[None, None, None]))
    for gradient in torch.autograd.grad(out.sum(), (q, k, v, p)):
        assert bool(gradient.isfinite().all())
    (gradient,) = torch.autograd.grad(run(way, q, k, v, bias=LogPrior(p[None, None, None])).pow(2).sum(), p)
    assert gradient[0] == 0.0
    assert bool(gradient[1:].all())


@every_way
def test_a_row_of_zeros_attends_nothing(way: str) -> None:
    q, k, v = inputs(2, 3)
    p = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)[None, None].requires_grad_()
    out = run(way, q, k, v, bias=LogPrior(p))
    assert not bool(out[:, :, 0].any())
    for gradient in torch.autograd.grad(out.sum(), (q, k, v, p)):
        assert bool(gradient.isfinite().all())


@every_way
def test_gradients_against_differences(way: str) -> None:
    q, k, v = (x.detach() for x in inputs(3))
    p = (prior(2, 1, 3) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run(way, q, k, v, Causal(), bias=LogPrior(x[None])), p)


def test_a_parameter_stays_one_and_trains() -> None:
    bias = LogPrior(nn.Parameter(torch.ones(4)))
    assert [name for name, _ in bias.named_parameters()] == ["prior"]
    q, k, v = inputs(4, dtype=torch.float32)
    attention(q, k, v, bias=bias).pow(2).sum().backward()
    assert bool(bias.prior.grad.any())
    assert list(LogPrior(torch.ones(4)).state_dict()) == []


def test_a_parameter_that_was_trained_below_zero_raises() -> None:
    bias = LogPrior(nn.Parameter(torch.ones(4)))
    with torch.no_grad():
        bias.prior[2] = -0.25
    q, k, v = inputs(4, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"prior holds -0.25 at \[2\]; it must be finite and not negative"):
        attention(q, k, v, bias=bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_logarithm_of_a_half_is_single(dtype: torch.dtype) -> None:
    p = torch.tensor([0.3, 0.7, 1e-5]).to(dtype)
    q = torch.zeros(1, 1, 3, 4, dtype=dtype)
    close(attention_weights(q, q, bias=LogPrior(p))[0, 0, 0], p.float() / p.float().sum(), atol=1e-6)


def test_a_common_factor_cancels() -> None:
    q, k, v = inputs(3)
    p = prior(3, 3)
    out = attention(q, k, v, bias=LogPrior(p))
    torch.testing.assert_close(attention(q, k, v, bias=LogPrior(7.0 * p)), out)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 3), (2, 3, 0), (2, 0, 0)], ids=str)
def test_empty_calls(batch: int, queries: int, keys: int) -> None:
    q, k = torch.zeros(batch, 2, queries, 4), torch.zeros(batch, 2, keys, 4)
    p = torch.ones(1, 1, queries, keys).requires_grad_()
    for mask in (None, complete(queries, keys)):
        out = attention(q, k, k, mask=mask, bias=LogPrior(p))
        assert out.shape == q.shape
        assert torch.autograd.grad(out.sum(), p)[0].shape == p.shape


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


Q = torch.zeros(2, 2, 4, 8)
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "negative": (lambda: LogPrior(torch.tensor([[1.0, -0.5]])), ValueError, "prior holds -0.5 at [0, 1]; it must be"),
    "NaN": (lambda: LogPrior(torch.tensor(float("nan"))), ValueError, "prior holds nan at []"),
    "infinite": (lambda: LogPrior(torch.tensor([INF])), ValueError, "prior holds inf at [0]"),
    "ints": (lambda: LogPrior(torch.tensor([1, 2])), TypeError, "prior is [2] int64; give floats"),
    "a list": (lambda: LogPrior([0.5]), TypeError, "prior is list; give floats"),
    "other keys": (
        lambda: attention(Q, Q, Q, bias=LogPrior(ones(3))), ValueError, "LogPrior's prior has shape [3], which",
    ),
    "other edges": (
        lambda: attention(Q, Q, Q, mask=Graph(EDGES), bias=LogPrior(ones(4, 4))), ValueError,
        "LogPrior's values hold 4 edges, but the mask's graph has 5",
    ),
    "other heads": (
        lambda: attention(Q, Q, Q, mask=Graph(EDGES), bias=LogPrior(ones(5, 3))), ValueError, "[5, 3], but q has 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_raises_and_says_what_to_do(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)


def test_it_says_its_shape() -> None:
    assert repr(LogPrior(ones(5, 2))) == "LogPrior([5, 2])"
