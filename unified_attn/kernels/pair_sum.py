"""Sums over listed pairs in pieces: no tensor of pairs x channels, and an operator whose derivatives are itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PIECE = 2**17  # elements of a gathered tensor, so that a piece stays in the cache
_LEAST_PAIRS = 256


@torch.library.custom_op("unified_attn::pair_sum", mutates_args=())
def pair_sum(a: Tensor, b: Tensor, c: Tensor, row: Tensor, col: Tensor, visible: Tensor | None) -> Tensor:
    """Adds to row i what its pairs bring, weighted by inner products; differentiable to any order.

        out_i = sum over pairs e with row_e = i of <a_i, b_j> c_j,  j = col_e

    Args:
        a: ``[..., N, M]``. The leading dimensions of all three are equal, strides are any.
        b: ``[..., K, M]``.
        c: ``[..., K, D]``.
        row: ``[E]`` int64.
        col: ``[E]`` int64.
        visible: bool that broadcasts to ``[..., E]``, False = the pair counts nothing; or None.

    Returns:
        ``[..., N, D]``.

    Cost: O(E (M + D)) time for each leading index; gathers one piece of the pairs at a time.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> pair_sum(x, x, x, torch.tensor([0, 0]), torch.tensor([0, 1]), None)  # 1 * 1 * 1 + 1 * 2 * 2
        tensor([[5.],
                [0.]])
    """
    a, b, c = (x.movedim(-2, 0).contiguous() for x in (a, b, c))  # a row is then one stretch of memory
    out = c.new_zeros((a.shape[0], *c.shape[1:]))
    piece = max(_PIECE // max(a.shape[1:-1].numel() * max(a.shape[-1], c.shape[-1]), 1), _LEAST_PAIRS)
    if visible is not None:  # pairs first, as in the weights
        hidden = ~visible[(None,) * (a.dim() - 1 - visible.dim())].expand(*[-1] * (a.dim() - 2), row.shape[0])
        hidden = hidden.movedim(-1, 0)
    for start in range(0, row.shape[0], piece):
        pairs = slice(start, start + piece)
        i, j = row[pairs], col[pairs]
        weights = (a.index_select(0, i) * b.index_select(0, j)).sum(-1)
        if visible is not None:
            weights = weights.masked_fill_(hidden[pairs], 0.0)
        out.index_add_(0, i, c.index_select(0, j).mul_(weights[..., None]))
    return out.movedim(0, -2)


@pair_sum.register_fake
def _(a: Tensor, b: Tensor, c: Tensor, row: Tensor, col: Tensor, visible: Tensor | None) -> Tensor:
    return c.new_empty((a.shape[-2], *a.shape[:-2], c.shape[-1])).movedim(0, -2)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b, c, row, col, visible = ctx.saved_tensors
    need_a, need_b, need_c = ctx.needs_input_grad[:3]
    return (
        pair_sum(grad, c, b, row, col, visible) if need_a else None,
        pair_sum(c, grad, a, col, row, visible) if need_b else None,
        pair_sum(b, a, grad, col, row, visible) if need_c else None,
        None,
        None,
        None,
    )


pair_sum.register_autograd(_differentiate, setup_context=_save)
