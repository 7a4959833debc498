"""Scalars a node and head, <x, att>, as GAT's score wants them before its kernel runs; differentiable once.

Where two vectors are contracted with one x it is read once, and gets one gradient. The backward pass reads x only where
the scalar's gradient is not 0, so that a node which takes part in no visible pair may hold anything. Partial sums are
cut at a fixed number of nodes: the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unified_attn.errors import refuse_second_derivative
from unified_attn.kernels import threads
from unified_attn.kernels.watched import watched

_BLOCK = 4096  # nodes a task


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


def _run(kernel: Callable[..., None], batch: int, nodes: int, *arrays: Any) -> None:
    blocks = -(-nodes // _BLOCK)

    def run(task: int) -> None:
        kernel(task, *_place(task, blocks, nodes), *arrays)

    threads.run(run, batch * blocks, parallel=batch * blocks > 1)


def _place(task: int, blocks: int, nodes: int) -> tuple[int, int, int]:
    """Batch index, first node and the one after the last of a task."""
    start = task % blocks * _BLOCK
    return task // blocks, start, min(start + _BLOCK, nodes)


def _node_major(x: Tensor) -> np.ndarray[Any, Any]:
    """``[B, H, N, D]`` seen as ``[B, N, H, D]``: dense in memory for a graph layer's tensors."""
    view: np.ndarray[Any, Any] = x.detach().permute(0, 2, 1, 3).numpy()
    return view


def _array(x: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = x.detach().contiguous().numpy()
    return array


def _results(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    batch, _, nodes, _ = x.shape
    return (
        x.new_empty(batch, nodes, first.shape[0]).transpose(1, 2),
        x.new_empty(batch, nodes, second.shape[0]).transpose(1, 2),
    )


def _forward(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    from unified_attn.kernels.contract_numba import forward

    a, b = _results(x, first, second)
    if a.numel() or b.numel():
        outs = [out.transpose(1, 2).numpy() for out in (a, b)]
        _run(forward, x.shape[0], x.shape[2], _node_major(x), _array(first), _array(second), *outs)
    return a, b


def _backward(x: Tensor, first: Tensor, second: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from unified_attn.kernels.contract_numba import backward

    batch, heads, nodes, size = x.shape
    dx = x.new_empty(batch, nodes, heads, size)
    blocks = batch * -(-nodes // _BLOCK)
    sums = [np.zeros((blocks, *att.shape), dtype=dx.numpy().dtype) for att in (first, second)]
    if dx.numel():
        grads = [_array(grad.transpose(1, 2)) for grad in (g, h)]
        _run(backward, batch, nodes, _node_major(x), _array(first), _array(second), *grads, dx.numpy(), *sums)
    a, b = (torch.from_numpy(each.sum(0)) for each in sums)  # numpy adds the partial sums in order
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
