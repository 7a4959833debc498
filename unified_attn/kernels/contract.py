"""Scalars a node and head, <x, att>, as GAT's score wants them before its kernel runs; differentiable once.

Where two vectors are contracted with one x it is read once, and gets one gradient: to the one that x gets as a value,
too, this is added while it is computed. The backward pass reads x only where the scalar's gradient is not 0, so that a
node which takes part in no visible pair may hold anything. Partial sums are cut at a fixed number of nodes: the same
bits for any number of threads.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unified_attn._watched import watched, watched_gradient
from unified_attn.errors import refuse_second_derivative
from unified_attn.kernels import contract_args as at
from unified_attn.kernels import threads
from unified_attn.kernels.csr_call import dense_last
from unified_attn.kernels.csr_launch import Plans, lanes
from unified_attn.kernels.pages import empty


def contract(x: Tensor, att: Tensor) -> tuple[Tensor, Tensor]:
    """sum_d att[h, d] x[b, h // group, n, d].

    Args:
        x: ``[B, Hkv, N, D]``.
        att: ``[Hq, D]``, of the same dtype.

    Returns:
        ``[B, Hq, N]``, with a node's heads next to each other in memory; and x, for one reader whose gradient by it is
        a tensor of its own, which may be added to.
    """
    product, _, x = contract_both(x, att, att[:0])
    return product, x


def contract_both(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`contract` with two vectors a head, ``[Hq, D]`` each."""
    x, first, second = x.resolve_neg(), first.resolve_neg(), second.resolve_neg()
    if watched(x):
        return (*torch.ops.unified_attn.contract(x, first, second), x)
    if not torch.is_grad_enabled():
        return (*_forward(x, first, second), x)
    results: tuple[Tensor, Tensor, Tensor] = _Contract.apply(x, first, second)
    return results


class _Contract(torch.autograd.Function):
    """What the operators do, called directly; and x again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _save(ctx, (x, first, second), ())
        ctx.set_materialize_grads(False)
        return (*_forward(x, first, second), x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g, h, start = grads
        if start is None or _can_add(start):
            return _gradients(ctx.saved_tensors, g, h, start)
        dx, *others = _gradients(ctx.saved_tensors, g, h)
        return dx + start, *others


def _can_add(start: Tensor) -> bool:
    """Whether kernels can add to this gradient of x: it lies as they write it, and nobody wants the step recorded."""
    return not (torch.is_grad_enabled() or watched_gradient(start)) and start.transpose(1, 2).is_contiguous()


def _results(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    batch, _, nodes, _ = x.shape
    return (
        x.new_empty(batch, nodes, first.shape[0]).transpose(1, 2),
        x.new_empty(batch, nodes, second.shape[0]).transpose(1, 2),
    )


class _Plan(NamedTuple):
    """What follows from sizes and strides: a kernel's address, how many tasks, what it is told but addresses."""

    kernel: int
    tasks: int
    words: list[int]


_plans = Plans()


def _plan(which: str, x: Tensor, first: Tensor, second: Tensor) -> _Plan:
    from unified_attn.kernels import contract_numba as loops

    item, (batch, heads, nodes, size) = x.element_size(), x.shape
    blocks = -(-nodes // at.BLOCK)
    words = [0, *(x.stride(dim) * item for dim in (0, 2, 1)), heads, size, nodes, blocks, 0]
    words += [nodes * heads * size * item, 0]
    for att in (first, second):
        words += [0, att.shape[0], 0, nodes * att.shape[0] * item, 0, (len(first) + len(second)) * size * item]
    make = {"forward": loops.make_forward, "backward": loops.make_backward}[which]
    return _Plan(make(8 * item, *lanes(size, 8 * item)).address, batch * blocks, words)


def _run(
    which: str,
    x: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    dx: Tensor | None = None,
    sums: Tensor | None = None,
    adds: bool = False,
) -> None:
    """Runs a kernel over blocks of nodes.

    Args:
        which: ``"forward"`` or ``"backward"``.
        x: What is contracted, its last dimension dense.
        first: Vectors, and their products or the gradients of these; dense.
        second: The same of the other side.
        dx: Where x's gradient goes.
        sums: ``[tasks, heads of both sides, D]``, where the vectors' gradients go.
        adds: Whether x's gradient is added to what is there.
    """
    layout = (which, x.shape, x.stride(), x.dtype, len(first[0]), len(second[0]))
    plan: _Plan = _plans.find(layout, lambda: _plan(which, x, first[0], second[0]))
    record = threads.words(*plan.words)
    record[at.X] = x.data_ptr()
    for side, (att, product) in ((at.FIRST, first), (at.SECOND, second)):
        record[side + at.ATT], record[side + at.PRODUCT] = att.data_ptr(), product.data_ptr()
    if dx is not None and sums is not None:
        record[at.DX], record[at.ADDS], record[at.FIRST + at.DATT] = dx.data_ptr(), adds, sums.data_ptr()
        record[at.SECOND + at.DATT] = sums.data_ptr() + first[0].numel() * x.element_size()
    threads.run(plan.kernel, ctypes.addressof(record), plan.tasks)


def _forward(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    a, b = _results(x, first, second)
    if x.numel() == 0:
        return a.zero_(), b.zero_()
    _run("forward", dense_last(x), (first.contiguous(), a), (second.contiguous(), b))
    return a, b


def _backward(
    x: Tensor, first: Tensor, second: Tensor, g: Tensor, h: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the three; that of x is added to ``start`` if that is there."""
    batch, heads, nodes, size = x.shape
    dx = empty(x, batch, nodes, heads, size) if start is None else start.transpose(1, 2)
    tasks, both = batch * -(-nodes // at.BLOCK), len(first) + len(second)
    sums = x.new_empty(tasks, both, size) if x.numel() else x.new_zeros(1, both, size)
    if x.numel():
        g, h = (grad.transpose(1, 2).contiguous() for grad in (g, h))
        sides = (first.contiguous(), g), (second.contiguous(), h)
        _run("backward", dense_last(x), *sides, dx, sums, start is not None)
    # numpy adds the partial sums in order
    total = sums[0] if len(sums) == 1 else torch.from_numpy(sums.numpy().sum(0))
    a, b = total.split_with_sizes([len(first), len(second)])
    return dx.transpose(1, 2), a, b


def _backward_alone(x: Tensor, first: Tensor, second: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dx, a, b = _backward(x, first, second, g, h)
    return dx, a.clone(), b.clone()  # an operator's results share no memory


torch.library.custom_op("unified_attn::contract", _forward, mutates_args=(), device_types="cpu")
torch.library.custom_op("unified_attn::contract_backward", _backward_alone, mutates_args=(), device_types="cpu")


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


def _differentiate(ctx: Any, g: Tensor | None, h: Tensor | None) -> tuple[Tensor, ...]:
    return _gradients(ctx.saved_tensors, g, h)


def _gradients(
    saved: tuple[Tensor, ...], g: Tensor | None, h: Tensor | None, start: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Of x and the vectors, from those of the products."""
    x, first, second = saved
    g, h = (
        x.new_zeros(x.shape[0], att.shape[0], x.shape[2]) if grad is None else grad
        for grad, att in ((g, first), (h, second))
    )
    # A graph of the backward pass holds the operator, which refuses to be differentiated.
    if torch.is_grad_enabled() or watched(x):
        found: tuple[Tensor, ...] = torch.ops.unified_attn.contract_backward(x, first, second, g, h)
        return found
    return _backward(x, first, second, g, h, start)


torch.library.register_autograd("unified_attn::contract", _differentiate, setup_context=_save)
torch.library.register_autograd("unified_attn::contract_backward", refuse_second_derivative)
