"""Scalars a node and head, <x, att>, as GAT's score wants them before its kernel runs; differentiable once.

The backward pass reads x only where the scalar's gradient is not 0, so that a node which takes part in no visible pair
may hold anything. Partial sums are cut at a fixed number of nodes: the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unified_attn.errors import refuse_second_derivative
from unified_attn.kernels import threads

_BLOCK = 4096  # nodes a task


def _run(kernel: Callable[..., None], batch: int, nodes: int, *arrays: Any) -> None:
    blocks = -(-nodes // _BLOCK)

    def start() -> Callable[[int], None]:
        return lambda task: kernel(task, *_place(task, blocks, nodes), *arrays)

    threads.run(start, batch * blocks, parallel=batch * blocks > 1)


def _place(task: int, blocks: int, nodes: int) -> tuple[int, int, int]:
    """Batch index, first node and the one after the last of a task."""
    start = task % blocks * _BLOCK
    return task // blocks, start, min(start + _BLOCK, nodes)


def _node_major(x: Tensor) -> np.ndarray[Any, Any]:
    """``[B, H, N, D]`` seen as ``[B, N, H, D]``: dense in memory for a graph layer's tensors."""
    view: np.ndarray[Any, Any] = x.detach().permute(0, 2, 1, 3).numpy()
    return view


@torch.library.custom_op("unified_attn::contract", mutates_args=(), device_types="cpu")
def contract(x: Tensor, att: Tensor) -> Tensor:
    """sum_d att[h, d] x[b, h // group, n, d].

    Args:
        x: ``[B, Hkv, N, D]``.
        att: ``[Hq, D]``, of the same dtype.

    Returns:
        ``[B, Hq, N]``, with a node's heads next to each other in memory.
    """
    from unified_attn.kernels.contract_numba import forward

    batch, _, nodes, _ = x.shape
    out = x.new_empty(batch, nodes, att.shape[0])
    if out.numel():
        _run(forward, batch, nodes, _node_major(x), att.detach().contiguous().numpy(), out.numpy())
    return out.transpose(1, 2)


@contract.register_fake
def _(x: Tensor, att: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[2], att.shape[0]).transpose(1, 2)


@torch.library.custom_op("unified_attn::contract_backward", mutates_args=(), device_types="cpu")
def contract_backward(grad: Tensor, x: Tensor, att: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and att."""
    from unified_attn.kernels.contract_numba import backward

    batch, heads, nodes, size = x.shape
    dx = x.new_empty(batch, nodes, heads, size)
    blocks = batch * -(-nodes // _BLOCK)
    partial = np.zeros((blocks, *att.shape), dtype=dx.numpy().dtype)
    if grad.numel():
        upstream = grad.detach().transpose(1, 2).contiguous().numpy()
        _run(backward, batch, nodes, upstream, _node_major(x), att.detach().contiguous().numpy(), dx.numpy(), partial)
    return dx.transpose(1, 2), torch.from_numpy(partial.sum(0))  # numpy adds the partial sums in order


@contract_backward.register_fake
def _(grad: Tensor, x: Tensor, att: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, nodes, size = x.shape
    return x.new_empty(batch, nodes, heads, size).transpose(1, 2), att.new_empty(att.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    dx, datt = torch.ops.unified_attn.contract_backward(grad, *ctx.saved_tensors)
    return dx, datt


contract.register_autograd(_differentiate, setup_context=_save)
contract_backward.register_autograd(refuse_second_derivative)
