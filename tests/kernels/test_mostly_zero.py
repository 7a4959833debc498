"""Sparse products in place of dense ones: the definition in float64, and all that has to stay dense."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from unified_attn import Graph
from unified_attn.kernels import mostly_zero, threads
from unified_attn.nn import GATConv, GATv2Conv, TransformerConv
from unified_attn.nn.linear import Linear

ROWS, FEATURES = 300, 150  # three tasks; rows end inside of a block of sixteen


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices count, too."""
    monkeypatch.setattr(mostly_zero, "LEAST", 1)


def words(dtype: torch.dtype = torch.float32, share: float = 0.03) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    there = torch.rand(ROWS, FEATURES, generator=generator) < share
    there[5] = False
    return torch.randn(ROWS, FEATURES, generator=generator).to(dtype) * there


def made(size: int, dtype: torch.dtype, bias: bool = True) -> Linear:
    torch.manual_seed(0)
    return Linear(FEATURES, size, bias=bias).to(dtype)


def dense(x: Tensor, linear: Linear) -> Tensor:
    out = x @ linear.weight.t()
    return out if linear.bias is None else out + linear.bias


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [1, 8, 33, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_definition(dtype: torch.dtype, size: int, bias: bool) -> None:
    x, linear = words(dtype), made(size, dtype, bias)
    assert mostly_zero.nonzeros(x) is not None
    out = linear(x)
    assert out.grad_fn is not None
    assert "_Linear" in type(out.grad_fn).__name__
    wanted = dense(x.double(), linear.double())
    g = torch.randn(ROWS, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    right = [wanted, *torch.autograd.grad(wanted, list(linear.parameters()), g)]
    linear = made(size, dtype, bias)
    out = linear(x)
    found = [out, *torch.autograd.grad(out, list(linear.parameters()), g.to(dtype))]
    for a, b in zip(found, right, strict=True):
        assert a.dtype == dtype
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


def refuses(x: Tensor) -> bool:
    return mostly_zero.nonzeros(x) is None


def test_what_stays_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not refuses(words())
    assert refuses(words(share=0.5))
    assert refuses(words().requires_grad_())
    assert refuses(words().half())
    assert refuses(words().t())
    assert refuses(words()[:, :100])
    assert refuses(words()[None])
    assert refuses(words().to("meta"))
    assert refuses(torch._neg_view(words()))
    with torch.no_grad():
        assert not refuses(words().requires_grad_())
    assert not refuses(words()[::2])  # rows that do not follow each other
    monkeypatch.setattr(mostly_zero, "LEAST", ROWS * FEATURES + 1)
    assert refuses(words())


def test_rows_fuller_than_the_sample_says_stay_dense() -> None:
    x = torch.zeros(3200, FEATURES)
    x[1:190] = 1.0  # more than a task has room for, and not among the rows of the sample
    assert refuses(x)
    linear = made(8, torch.float32)
    torch.testing.assert_close(linear(x), dense(x, linear))


def test_numbers_that_are_not_finite_are_seen_wherever_they_are() -> None:
    x = words()
    x[3] = 0.0
    x[3, 7] = torch.nan
    linear = made(4, torch.float32)
    assert mostly_zero.nonzeros(x) is not None
    out = linear(x)
    assert torch.equal(out.isnan().any(1), torch.arange(ROWS) == 3)
    with torch.no_grad():
        linear.weight[0, 7] = torch.inf
    assert linear(words())[:, 0].isnan().sum() == dense(words(), linear)[:, 0].isnan().sum() > ROWS // 2
    linear = made(4, torch.float32)
    g = torch.zeros(ROWS, 4)
    g[5, 0] = torch.nan  # row 5 of x is empty, and 0 times NaN is NaN all the same
    assert torch.autograd.grad(linear(words()), [linear.weight], g)[0][0].isnan().all()


def test_features_changed_in_place_are_read_anew() -> None:
    x, linear = words(), made(8, torch.float32)
    linear(x)
    x.numpy()[0] = 0.0  # behind torch's back
    x.numpy()[0, 3] = 2.0
    torch.testing.assert_close(linear(x), dense(x, linear))


def test_second_derivatives_and_transforms() -> None:
    x, linear = words(torch.float64), made(3, torch.float64)

    def second(out: Tensor) -> Tensor:
        first = torch.autograd.grad(out.sin().sum(), linear.weight, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), linear.weight)[0]

    torch.testing.assert_close(second(linear(x)), second(dense(x, linear)))
    weights = {name: p.detach() for name, p in linear.named_parameters()}
    tangents = {name: torch.ones_like(p) for name, p in weights.items()}
    _, found = torch.func.jvp(lambda w: torch.func.functional_call(linear, w, (x,)), (weights,), (tangents,))
    torch.testing.assert_close(found, x.sum(1, keepdim=True).expand(-1, 3) + 1)
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), dense(x, linear))


def test_gradients_of_a_batch_of_cotangents() -> None:
    x, linear = words(), made(3, torch.float32)
    g = torch.randn(2, ROWS, 3)
    found = torch.autograd.grad(linear(x), list(linear.parameters()), g, is_grads_batched=True)
    for n in range(2):
        wanted = torch.autograd.grad(dense(x, linear), list(linear.parameters()), g[n])
        torch.testing.assert_close([f[n] for f in found], list(wanted), rtol=1e-5, atol=1e-5)


def test_weights_and_gradients_with_a_negative_bit() -> None:
    x, linear, g = words(), made(3, torch.float32), torch.randn(ROWS, 3)
    weight = torch._neg_view(linear.weight.detach().neg()).requires_grad_()
    few = mostly_zero.nonzeros(x)
    assert few is not None
    (out,) = mostly_zero.linears(x, few, [weight], [None])
    torch.testing.assert_close(out, x @ linear.weight.t())
    (found,) = torch.autograd.grad(out, weight, torch._neg_view(g))
    torch.testing.assert_close(found, -(g.t() @ x), rtol=1e-5, atol=1e-5)


def test_a_bias_of_another_kind_raises_as_torch_does() -> None:
    linear = made(3, torch.float32)
    linear.bias = nn.Parameter(torch.ones(3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="same dtype"):
        linear(words())


def test_features_may_change_where_only_the_bias_learns() -> None:
    x, linear = words(), made(3, torch.float32)
    linear.weight.requires_grad_(False)
    out = linear(x)
    x.mul_(2)
    out.sum().backward()
    assert linear.bias is not None
    torch.testing.assert_close(linear.bias.grad, torch.full((3,), float(ROWS)))


@pytest.fixture
def restored() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.mark.usefixtures("restored")
def test_the_same_bits_for_any_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x, linear, g = words(), made(40, torch.float32), torch.randn(ROWS, 40)

    def results() -> list[Tensor]:
        out = linear(x)
        return [out, *torch.autograd.grad(out, list(linear.parameters()), g)]

    torch.set_num_threads(1)
    want = results()
    for count in (2, 5):
        torch.set_num_threads(count)
        assert all(torch.equal(a, b) for a, b in zip(results(), want, strict=True))
    monkeypatch.setattr(threads, "_openmp", lambda: None)
    assert all(torch.equal(a, b) for a, b in zip(results(), want, strict=True))


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv, TransformerConv])
def test_layers_look_once(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """All maps of one layer share one look, and no look outlives its call."""
    looks = []
    listed = mostly_zero._listed
    monkeypatch.setattr(mostly_zero, "_listed", lambda x: looks.append(1) or listed(x))
    torch.manual_seed(0)
    options = {"residual": True} if kind is not TransformerConv else {}
    layer = kind(FEATURES, 4, heads=2, **options)
    graph = Graph(torch.randint(0, ROWS, (2, 900)), num_keys=ROWS)
    x = words()
    out = layer(x, graph)
    assert len(looks) == 1
    monkeypatch.setattr(mostly_zero, "nonzeros", lambda x: None)
    wanted = layer(x, graph)
    torch.testing.assert_close(out, wanted)
    found = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
    right = torch.autograd.grad(wanted.square().sum(), list(layer.parameters()))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    monkeypatch.undo()
    monkeypatch.setattr(mostly_zero, "LEAST", 1)
    monkeypatch.setattr(mostly_zero, "_listed", lambda x: looks.append(1) or listed(x))
    x.numpy()[:] = words().flip(0).numpy()
    assert not torch.allclose(layer(x, graph), out)
    assert len(looks) == 2
