"""What is special to the back end over torch's kernel: no table where none is needed, derivatives, odd sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases.tools import assert_same, formula, gradients, inputs
from tests.test_memory import created
from unified_attn import (
    ALiBi,
    Causal,
    DenseBias,
    Dot,
    Mask,
    Padding,
    UnsupportedError,
    Where,
    Window,
    attention,
    attention_with_lse,
    explain,
)
from unified_attn.kernels.flash import flash


def causal(queries: int, keys: int) -> Tensor:
    return torch.arange(keys) <= torch.arange(queries)[:, None] + keys - queries


@pytest.mark.parametrize("size", [0, 1, 2, 63, 113])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2)])
def test_causal_at_odd_sizes(size: int, heads: int, kv_heads: int) -> None:
    q, k, v = inputs(size, heads=heads, kv_heads=kv_heads, dim=5, value_dim=3)
    assert_same(attention(q, k, v, mask=Causal(), backend="sdpa"), formula(q, k, v, causal(size, size)), q, k, v)


@pytest.mark.parametrize("keys", [1, 2, 9])
@pytest.mark.parametrize("value_dim", [2, 4, 7])
def test_keys_whose_channels_lie_apart(keys: int, value_dim: int) -> None:
    """The kernel reads the channels of a row side by side, and asks no tensor for its strides."""
    q, k, v = (x.movedim(3, 0).contiguous().movedim(0, 3) for x in inputs(keys, dim=4, value_dim=value_dim))
    for ours, exact in zip(*(attention_with_lse(q, k, v, backend=name) for name in ("sdpa", "reference")), strict=True):
        torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_that_is_not_positive_hides_what_is_hidden(scale: float) -> None:
    """Torch's flag puts -inf before the scale: times 0 that was NaN, times a negative number the future was all."""
    q, k, v = inputs(5)
    logits = (scale * q @ k.mT).masked_fill(~causal(5, 5), -torch.inf)
    for backend in ("sdpa", None):
        out = attention(q, k, v, mask=Causal(), scale=scale, backend=backend)
        torch.testing.assert_close(out, logits.softmax(-1) @ v)


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (3, 7), (7, 3), (7, 1)])
def test_queries_are_the_last_tokens(queries: int, keys: int) -> None:
    """Torch's own flag counts rows from the top left."""
    q, k, v = inputs(queries, keys)
    assert_same(attention(q, k, v, mask=Causal(), backend="sdpa"), formula(q, k, v, causal(queries, keys)), q, k, v)


@pytest.mark.parametrize(
    ("mask", "queries"),
    [
        (None, 101),
        (Causal(), 101),
        (Window(None, 0), 101),
        (Window(200, 0), 101),
        (Causal(), 1),
        (Window(300, 300), 50),
    ],
    ids=str,
)
def test_no_table_is_made_where_the_flag_says_it_or_nothing_is_hidden(mask: Mask | None, queries: int) -> None:
    q, k, v = inputs(queries, 101, heads=2, dim=4)

    def step() -> None:
        out = attention(q, k, v, mask=mask, backend="sdpa")
        out.backward(out)

    assert max(created(step)) < 101 * queries or queries == 1
    assert max(created(step)) <= q.numel() + k.numel()


@pytest.mark.parametrize(
    "mask", [Where(lambda b, h, i, j: j <= i), Padding(torch.ones(2, 101, dtype=torch.bool))], ids=str
)
def test_a_table_is_as_small_as_it_broadcasts(mask: Mask) -> None:
    q, k, v = inputs(101, heads=8, dim=4)
    with torch.no_grad():
        sizes = created(lambda: attention(q, k, v, mask=mask, backend="sdpa"))
    assert max(sizes) <= 101 * 101  # not times heads and batch


def test_a_second_derivative_names_who_has_one() -> None:
    q, k, v = inputs(5)
    for mask, bias in ((Causal(), None), (None, DenseBias(torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)))):
        out = attention(q, k, v, mask=mask, bias=bias, backend="sdpa")
        (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        with pytest.raises(UnsupportedError, match=r"no second derivative.*reference.*scatter") as error:
            torch.autograd.grad(dq.sum(), k)
        assert error.value.backend == "sdpa"


def test_forward_mode_and_transforms_are_refused() -> None:
    x = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(UnsupportedError, match="no forward-mode derivative"):
            attention(dual, x, x, backend="sdpa")
    with pytest.raises(UnsupportedError, match=r"a transform of torch\.func is active"):
        torch.func.grad(lambda x: attention(x, x, x, backend="sdpa").sum())(x)
    torch.func.grad(lambda x: attention(x, x, x).sum())(x)  # the default is another one


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dropout_p": 0.1}, "draws a dropout of its own"),
        ({"score": Dot(softcap=2.0)}, "has no cap"),
    ],
)
def test_what_it_declines(options: dict[str, Any], reason: str) -> None:
    q, k, v = inputs(4)
    (said,) = explain(q, k, v, **options).reasons["sdpa"]
    assert reason in said


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in inputs(3, 4000, batch=1))
    out = attention(q, k, v, backend="sdpa")
    exact = formula(q.double(), k.double(), v.double())
    eager = (formula(q.float(), k.float(), v.float()).to(dtype).double() - exact).abs().max()
    assert out.dtype == dtype
    assert (out.double() - exact).abs().max() <= 2 * eager


@pytest.mark.parametrize("shape", [(), (4, 1, 1), (2, 1, 5, 1), (1, 1, 1, 7), (5, 7), (2, 4, 5, 7)])
def test_gradients_of_a_table_have_its_own_shape(shape: tuple[int, ...]) -> None:
    q, k, v = inputs(5, 7, heads=4, kv_heads=2)
    table = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out, lse = attention_with_lse(q, k, v, bias=DenseBias(table), backend="sdpa")
    again, lse_again = attention_with_lse(q, k, v, bias=DenseBias(table), backend="reference")
    for a, b in ((out, again), (lse, lse_again)):
        for x, y in zip(gradients(a, q, k, table), gradients(b, q, k, table), strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize("add", [None, (1, 2, 6, 6), (1, 1, 1, 6)])
@pytest.mark.parametrize("value_dim", [4, 7])
def test_the_operators_pass_opcheck(add: tuple[int, ...] | None, value_dim: int) -> None:
    q, k, v = inputs(6, batch=1, value_dim=value_dim)
    table = None if add is None else torch.randn(add, dtype=torch.float64, requires_grad=True)
    for factors in (None, torch.ones(1, 2, 6, 6, dtype=torch.float64)):
        torch.library.opcheck(torch.ops.unified_attn.flash.default, (q, k, v, table, factors, 0.5, False, "sdpa"))
        with torch.no_grad():
            out, lse = flash(q, k, v, table, factors, 0.5, False, "sdpa")
            options = (0.5, False, table is not None, "sdpa")
            torch.library.opcheck(
                torch.ops.unified_attn.flash_backward.default, (out, lse, q, k, v, out, lse, table, factors, *options)
            )


def test_it_compiles_whole() -> None:
    q, k, v = inputs(6)
    call = lambda q, k, v: attention(q, k, v, mask=Causal(), bias=ALiBi(2), backend="sdpa")  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert_same(compiled(q, k, v), call(q, k, v), q, k, v)
