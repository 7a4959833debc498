"""Dot-product attention over a table of additive values, on torch's own blocked CPU kernel.

The kernel never forms the logits. Around it this module adds what a caller of the library is promised: a log-sum-exp
that is -inf in rows without a visible key, and its gradient; head sizes of v other than q's; the gradient of the table;
empty sizes; factors of the weights (dropout). Where the gradient of the table or factors are asked for, logits are
formed, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from unified_attn._watched import watched, watched_gradient
from unified_attn.errors import UnsupportedError

AT_ONCE = 2**21
"""Logits formed at a time, where they are: 8 MiB of float32."""


def flash(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """:func:`_forward`, differentiable once: what follows ``query`` is told there."""
    results: tuple[Tensor, Tensor]
    if watched(query):
        results = torch.ops.unified_attn.flash(query, *others)
    elif torch.is_grad_enabled():
        results = _Flash.apply(query, *others)
    else:
        results = _forward(query, *others)
    return results


class _Flash(torch.autograd.Function):
    """What the operators do, called directly."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        results = _forward(*inputs)
        _save(ctx, inputs, results)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *grads)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    add: Tensor | None,
    factors: Tensor | None,
    scale: float,
    causal: bool,
    caller: str,
) -> tuple[Tensor, Tensor]:
    """softmax(scale * query key^T + add) value, and the log-sum-exp of the logits.

    Args:
        query: ``[B, Hq, Nq, D]``, float32 or float64, any strides.
        key: ``[B, Hkv, Nk, D]``.
        value: ``[B, Hkv, Nk, Dv]``. Nothing may be NaN or inf but where ``add`` leaves it to.
        add: ``[1 | B, 1 | Hq, 1 | Nq, 1 | Nk]``, -inf = hidden, or None.
        factors: ``[B, Hq, Nq, Nk]``, multiplied to the weights after the softmax, or None.
        scale: Multiplies the products.
        causal: Hide j > i, i and j being *rows*; with neither ``add`` nor ``factors``.
        caller: The back end to name where a second derivative is asked for.

    Returns:
        ``[B, Hq, Nq, Dv]`` and ``[B, Hq, Nq]``; 0 and -inf in rows without a visible key.
    """
    empty = query.shape[0] * query.shape[2] == 0 or key.shape[2] == 0
    if factors is None and not empty:
        width = max(query.shape[3], value.shape[3], 1)
        wide = _widened(query, width), _widened(key, width), _widened(value, width)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *wide, 0.0, causal, attn_mask=add, scale=scale
        )
        if value.shape[3] < width:
            out = out[..., : value.shape[3]]
        if add is not None:  # the kernel says 0 where nothing is visible
            lse.masked_fill_(add.amax(-1) == -torch.inf, -torch.inf)
        return out, lse
    out, lse = _empty(query, value)
    if empty or factors is None:
        return out.zero_(), lse.fill_(-torch.inf)
    for part in _parts(query, key):
        logits = _logits(query, key, add, scale, part)
        top = logits.amax(-1, keepdim=True)
        weights = logits.sub_(torch.where(top == -torch.inf, 0.0, top)).exp_()
        total = weights.sum(-1, keepdim=True)
        weights = weights.div_(torch.where(total == 0.0, 1.0, total)) * factors[part]
        out[part] = _by_group(weights, key.shape[1]).matmul(value[part[0]]).reshape(*weights.shape[:3], -1)
        lse[part] = (total.log() + top)[..., 0]
    return out, lse


def flash_backward(g_out: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and ``add`` (``[0]`` unless it needs one), from those of what ``flash`` gave.

    Args:
        g_out: Gradient of the output.
        others: That of lse, or None; query, key, value; the results; add, factors, scale, causal; whether the gradient
            of ``add`` is asked for; and the back end to name.
    """
    # A graph of the backward pass holds the operator, which refuses to be differentiated.
    seen = torch.is_grad_enabled() or watched_gradient(g_out)
    found: tuple[Tensor, Tensor, Tensor, Tensor] = (torch.ops.unified_attn.flash_backward if seen else _backward)(
        g_out, *others
    )
    return found


def _backward(
    g_out: Tensor,
    g_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    add: Tensor | None,
    factors: Tensor | None,
    scale: float,
    causal: bool,
    needs_add: bool,
    caller: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_add = _place_of(add, query, needs_add).zero_()
    if query.shape[0] * query.shape[2] == 0 or key.shape[2] == 0:
        d_query, d_key, d_value = (_heads_inside(x, x.shape[3]).zero_() for x in (query, key, value))
        return d_query, d_key, d_value, d_add
    lse = lse.masked_fill(lse == -torch.inf, 0.0)  # exp(-inf - 0) is 0; -inf - -inf is not
    if factors is None and not needs_add:
        # With 1 in one more column of the output's gradient and 0 in that of v, the kernel's <g_out, out> in
        # ds = p * (dp - <g_out, out>) takes the gradient of lse from that column of the output.
        more = 0 if g_lse is None else 1
        width = max(query.shape[3], value.shape[3] + more, 1)
        g_out, out = _widened(g_out, width), _widened(out, width)
        if g_lse is not None:
            g_out, out = (x.index_fill(-1, torch.tensor([value.shape[3]]), 1.0) for x in (g_out, out))
            out = torch.cat([out[..., : value.shape[3]], -g_lse[..., None], out[..., value.shape[3] + 1 :]], -1)
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g_out, *(_widened(x, width) for x in (query, key, value)), out, lse, 0.0, causal, attn_mask=add, scale=scale
        )
        sizes = (query.shape[3], key.shape[3], value.shape[3])
        d_query, d_key, d_value = (x[..., :size] for x, size in zip(found, sizes, strict=True))
        return d_query, d_key, d_value, d_add
    d_query, d_key, d_value = (_heads_inside(x, x.shape[3]).zero_() for x in (query, key, value))
    delta = (g_out * out).sum(-1)
    delta = (delta if g_lse is None else delta - g_lse)[..., None]
    for part in _parts(query, key):
        entries, heads = part[0], key.shape[1]
        weights = _logits(query, key, add, scale, part).sub_(lse[part][..., None]).exp_()
        g = _by_group(g_out[part], heads)
        d_weights = g.matmul(value[entries].mT).view_as(weights)
        used = weights
        if factors is not None:
            used, d_weights = weights * factors[part], d_weights * factors[part]
        d_logits = weights * (d_weights - delta[part])
        d_value[entries] += _by_group(used, heads).mT.matmul(g)
        if needs_add:
            place = d_add[_where(d_add, part)]
            place += d_logits.sum_to_size(place.shape)
        d_logits = _by_group(d_logits, heads).mul_(scale)
        d_query[part] = d_logits.matmul(key[entries]).view_as(d_query[part])
        d_key[entries] += d_logits.mT.matmul(_by_group(query[part], heads))
    return d_query, d_key, d_value, d_add


Part = tuple[slice, slice, slice]


def _parts(query: Tensor, key: Tensor) -> Iterator[Part]:
    """Batch entries, heads and rows whose logits are formed together."""
    batch, heads, rows, _ = query.shape
    step = max(1, AT_ONCE // max(1, heads * key.shape[2]))  # rows
    entries = max(1, step // rows)
    for b in range(0, batch, entries):
        for i in range(0, rows, step):
            yield slice(b, b + entries), slice(None), slice(i, i + step)


def _where(add: Tensor, part: Part) -> Part:
    """The same part of a table that need not have all sizes."""
    return (part[0] if add.shape[0] > 1 else slice(None), slice(None), part[2] if add.shape[2] > 1 else slice(None))


def _by_group(x: Tensor, kv_heads: int) -> Tensor:
    """``[B, Hq, Nq, ...]`` as ``[B, Hkv, group * Nq, ...]``: the rows that read one key head."""
    return x.reshape(x.shape[0], kv_heads, x.shape[1] // kv_heads * x.shape[2], x.shape[3])


def _logits(query: Tensor, key: Tensor, add: Tensor | None, scale: float, part: Part) -> Tensor:
    q = query[part]
    logits = _by_group(q, key.shape[1]).matmul(key[part[0]].mT).reshape(*q.shape[:3], key.shape[2]).mul_(scale)
    return logits if add is None else logits.add_(add[_where(add, part)])


def _widened(x: Tensor, width: int) -> Tensor:
    """Zeros behind the last columns, and those of a row side by side: what the kernel reads."""
    if x.shape[-1] < width:
        x = pad(x, (0, width - x.shape[-1]))  # which keeps the order of strides
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the results, laid out as the kernel does it: the output as the query."""
    out = torch.empty_like(_widened(query, max(query.shape[3], value.shape[3], 1)))
    return out[..., : value.shape[3]], _heads_inside(query, 1)[..., 0]


def _heads_inside(x: Tensor, width: int) -> Tensor:
    """Room for ``[B, H, N, width]`` with the heads of a row side by side, as the kernel lays out all but its output."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], width).transpose(1, 2)


def _place_of(add: Tensor | None, query: Tensor, needed: bool) -> Tensor:
    return query.new_empty(add.shape if add is not None and needed else 0)


torch.library.custom_op("unified_attn::flash", _forward, mutates_args=(), device_types="cpu")
torch.library.custom_op("unified_attn::flash_backward", _backward, mutates_args=(), device_types="cpu")


@torch.library.register_fake("unified_attn::flash")
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    add: Tensor | None,
    factors: Tensor | None,
    scale: float,
    causal: bool,
    caller: str,
) -> tuple[Tensor, Tensor]:
    return _empty(query, value)


@torch.library.register_fake("unified_attn::flash_backward")
def _(
    g_out: Tensor,
    g_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    add: Tensor | None,
    factors: Tensor | None,
    scale: float,
    causal: bool,
    needs_add: bool,
    caller: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width = max(query.shape[3], value.shape[3] + (g_lse is not None), 1)
    if factors is not None or needs_add or query.shape[0] * query.shape[2] == 0 or key.shape[2] == 0:
        d_query, d_key, d_value = (_heads_inside(x, x.shape[3]) for x in (query, key, value))
    else:
        d_query, d_key, d_value = (_heads_inside(x, width)[..., : x.shape[3]] for x in (query, key, value))
    return d_query, d_key, d_value, _place_of(add, query, needs_add)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.options = inputs[5:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, g_out: Tensor | None, g_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, add, factors, out, lse = ctx.saved_tensors
    scale, causal, caller = ctx.options
    needs = ctx.needs_input_grad
    g_out = torch.zeros_like(out) if g_out is None else g_out
    grads = flash_backward(g_out, g_lse, query, key, value, out, lse, add, factors, scale, causal, needs[3], caller)
    return (*(grad if need else None for grad, need in zip(grads, needs, strict=False)), None, None, None, None)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    ctx.caller = inputs[-1]


def _refuse(ctx: Any, *grads: object) -> NoReturn:
    """Raises UnsupportedError: torch's kernel has no second derivative."""
    raise UnsupportedError(
        ctx.caller,
        ["its kernel has no second derivative; use backend='reference', or backend='scatter' for a list of pairs"],
    )


torch.library.register_autograd("unified_attn::flash", _differentiate, setup_context=_save)
torch.library.register_autograd("unified_attn::flash_backward", _refuse, setup_context=_remember)
