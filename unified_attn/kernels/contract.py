"""Scalars a node and head, <x, att>, as GAT's score wants them before its kernel runs; differentiable once.

Where two vectors are contracted with one x it is read once, and gets one gradient. The backward pass reads x only where
the scalar's gradient is not 0, so that a node which takes part in no visible pair may hold anything. Partial sums are
cut at a fixed number of nodes: the same bits for any number of threads.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from unified_attn.errors import refuse_second_derivative
from unified_attn.kernels import threads
from unified_attn.kernels.csr_call import dense_last
from unified_attn.kernels.csr_launch import lanes
from unified_attn.kernels.pages import fresh
from unified_attn.kernels.watched import watched


def contract(x: Tensor, att: Tensor) -> Tensor:
    """sum_d att[h, d] x[b, h // group, n, d].

    Args:
        x: ``[B, Hkv, N, D]``.
        att: ``[Hq, D]``, of the same dtype.

    Returns:
        ``[B, Hq, N]``, with a node's heads next to each other in memory.
    """
    return contract_both(x, att, att[:0])[0]


def contract_both(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`contract` with two vectors a head, ``[Hq, D]`` each."""
    results: tuple[Tensor, Tensor]
    x, first, second = x.resolve_neg(), first.resolve_neg(), second.resolve_neg()
    if watched(x):
        results = torch.ops.unified_attn.contract(x, first, second)
    elif torch.is_grad_enabled():
        results = _Contract.apply(x, first, second)
    else:
        results = _forward(x, first, second)
    return results


class _Contract(torch.autograd.Function):
    """What the operators do, called directly."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        _save(ctx, (x, first, second), ())
        return _forward(x, first, second)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *grads)


def _results(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    batch, _, nodes, _ = x.shape
    return (
        x.new_empty(batch, nodes, first.shape[0]).transpose(1, 2),
        x.new_empty(batch, nodes, second.shape[0]).transpose(1, 2),
    )


def _run(make: Any, x: Tensor, dx: Tensor | None, *sides: tuple[Tensor, Tensor, Tensor | None]) -> None:
    """Runs a kernel over blocks of nodes; each side: att, its product or the gradient of it, and datt."""
    from unified_attn.kernels.contract_numba import BLOCK

    bits, (batch, heads, nodes, size) = 8 * x.element_size(), x.shape
    blocks = -(-nodes // BLOCK)
    args = [x.data_ptr(), *_bytes(x, 0, 2, 1), heads, size, nodes, blocks, *_place(dx)]
    for att, product, datt in sides:
        args += [att.data_ptr(), att.shape[0], *_place(product), *_place(datt)]
    record = threads.words(*args)
    threads.run(make(bits, *lanes(size, bits)).address, ctypes.addressof(record), batch * blocks)


def _bytes(x: Tensor, *dims: int) -> list[int]:
    return [x.stride(dim) * x.element_size() for dim in dims]


def _place(x: Tensor | None) -> list[int]:
    """Address and first stride."""
    return [0, 0] if x is None else [x.data_ptr(), *_bytes(x, 0)]


def _forward(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    from unified_attn.kernels.contract_numba import make_forward

    a, b = _results(x, first, second)
    if x.numel() == 0:
        return a.zero_(), b.zero_()
    first, second = first.contiguous(), second.contiguous()
    _run(make_forward, dense_last(x), None, (first, a, None), (second, b, None))
    return a, b


def _backward(x: Tensor, first: Tensor, second: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from unified_attn.kernels.contract_numba import BLOCK, make_backward

    batch, heads, nodes, size = x.shape
    dx = fresh(x.new_empty(batch, nodes, heads, size))
    blocks = batch * -(-nodes // BLOCK)
    sums = [x.new_zeros(blocks, *att.shape) for att in (first, second)]
    if x.numel() > 0:
        first, second = first.contiguous(), second.contiguous()
        g, h = (grad.transpose(1, 2).contiguous() for grad in (g, h))
        _run(make_backward, dense_last(x), dx, (first, g, sums[0]), (second, h, sums[1]))
    # numpy adds the partial sums in order
    a, b = (each[0] if blocks == 1 else torch.from_numpy(each.numpy().sum(0)) for each in sums)
    return dx.transpose(1, 2), a, b


torch.library.custom_op("unified_attn::contract", _forward, mutates_args=(), device_types="cpu")
torch.library.custom_op("unified_attn::contract_backward", _backward, mutates_args=(), device_types="cpu")


@torch.library.register_fake("unified_attn::contract")
def _(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return _results(x, first, second)


@torch.library.register_fake("unified_attn::contract_backward")
def _(x: Tensor, first: Tensor, second: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, nodes, size = x.shape
    dx = x.new_empty(batch, nodes, heads, size).transpose(1, 2)
    return dx, first.new_empty(first.shape), second.new_empty(second.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: object) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    x, first, second = ctx.saved_tensors
    g, h = (
        x.new_zeros(x.shape[0], att.shape[0], x.shape[2]) if grad is None else grad
        for grad, att in zip(grads, (first, second), strict=True)
    )
    # A graph of the backward pass holds the operator, which refuses to be differentiated.
    seen = torch.is_grad_enabled() or watched(x)
    found: tuple[Tensor, ...] = (torch.ops.unified_attn.contract_backward if seen else _backward)(
        x, first, second, g, h
    )
    return found


torch.library.register_autograd("unified_attn::contract", _differentiate, setup_context=_save)
torch.library.register_autograd("unified_attn::contract_backward", refuse_second_derivative)
