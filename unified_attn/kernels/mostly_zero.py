"""Linear maps of features that are mostly zero, such as bags of words: what is zero is neither multiplied nor read.

The features of Cora hold 18 words of 1,433; a dense product spends 99 % of its time on zeros. Here one pass over x
lists what is there, and two sparse products take the place of the dense ones, forward and for the weight's gradient.
Nothing is kept from call to call: no key could tell that x is unchanged without reading it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unified_attn._watched import watched, watched_gradient
from unified_attn.kernels import threads
from unified_attn.kernels.csr_launch import lanes
from unified_attn.kernels.pages import empty

LEAST = 2**20
"""Numbers in x from which on the look is worth its time."""

WIDE = 128
"""Features a row from which on it can pay."""

SHARE = 1 / 20
"""Of nonzeros, up to which sparse products are the faster ones."""

_SAMPLE = 16  # rows that are looked at first


@dataclass(frozen=True, eq=False)
class Nonzeros:
    """The nonzeros of a matrix, row by row.

    Args:
        shape: Of the matrix.
        begins: ``[N]`` int64, where the first nonzero of a row is.
        ends: ``[N]`` int64, the one after its last.
        columns: int32, with gaps between some rows.
        values: Floats, likewise.
    """

    shape: tuple[int, int]
    begins: Tensor
    ends: Tensor
    columns: Tensor
    values: Tensor

    @cached_property
    def transposed(self) -> Nonzeros:
        """Those of the transposed matrix; a counting sort."""
        from unified_attn.kernels.mostly_zero_numba import make_turn

        (rows, size), count = self.shape, int((self.ends - self.begins).sum())
        begins, ends = self.begins.new_empty(2, size)
        turned = begins, ends, self.columns.new_empty(count), self.values.new_empty(count)
        own = self.begins, self.ends, self.columns, self.values
        args = threads.words(*(x.data_ptr() for x in own), rows, size, *(x.data_ptr() for x in turned))
        threads.run(make_turn(8 * self.values.element_size()).address, ctypes.addressof(args), 1)
        return Nonzeros((size, rows), *turned)

    def times(self, table: Tensor, start: Tensor | None = None) -> Tensor:
        """The matrix times ``table [columns, size]``, plus ``start [size]``."""
        from unified_attn.kernels.mostly_zero_numba import ROWS, make_product

        table, (rows, _), size, item = table.contiguous(), self.shape, table.shape[1], table.element_size()
        start = None if start is None else start.contiguous()
        out = empty(table, rows, size)
        parts = [x.data_ptr() for x in (self.begins, self.ends, self.columns, self.values, table)]
        step, first = size * item, 0 if start is None else start.data_ptr()
        args = threads.words(*parts, step, first, out.data_ptr(), step, rows, size)
        kernel = make_product(8 * item, *lanes(size, 8 * item)).address
        threads.run(kernel, ctypes.addressof(args), -(-rows // ROWS))
        return out


def nonzeros(x: Tensor) -> Nonzeros | None:
    """The nonzeros of ``x [N, F]`` if they are few enough for sparse products to pay; else None, after a short look."""
    if (
        watched(x)  # first: what follows would bound the sizes of exported code
        or x.dim() != 2
        or x.numel() < LEAST
        or x.shape[1] < WIDE
        or x.device.type != "cpu"
        or x.dtype not in (torch.float32, torch.float64)
        or x.stride(1) != 1
        or x.is_neg()
        or (x.requires_grad and torch.is_grad_enabled())
    ):
        return None
    return _listed(x.detach())


def _listed(x: Tensor) -> Nonzeros | None:
    from unified_attn.kernels.mostly_zero_numba import ROWS, make_scan

    rows, size = x.shape
    sample = x[:: max(rows // _SAMPLE, 1)]
    if int(torch.count_nonzero(sample)) > SHARE * sample.numel():
        return None
    tasks, room = -(-rows // ROWS), int(2 * SHARE * ROWS * size)  # rows differ
    begins, ends = torch.empty(2, rows, dtype=torch.int64)
    columns, values = torch.empty(tasks * room, dtype=torch.int32), x.new_empty(tasks * room)
    item = x.element_size()
    parts = [t.data_ptr() for t in (begins, ends, columns, values)]
    args = threads.words(x.data_ptr(), x.stride(0) * item, rows, size, room, *parts, 0)
    threads.run(make_scan(8 * item).address, ctypes.addressof(args), tasks)
    return Nonzeros((rows, size), begins, ends, columns, values) if args[len(args) - 1] == 0 else None


def _all_finite(x: Tensor) -> bool:
    """Whether no number is inf or NaN (nor the sum of all inf): 0 times such a one is no 0, and has to be seen."""
    return math.isfinite(float(x.sum()))


def linears(x: Tensor, few: Nonzeros, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """Several x W^T + b from the nonzeros of x.

    Args:
        x: ``[N, F]``, which gets no gradient.
        few: Its nonzeros.
        weights: ``[D, F]`` each.
        biases: ``[D]`` or None, each.

    Returns:
        ``[N, D]`` each. Numbers are added in another order than by a dense product; weights that are not finite go
        there.
    """
    alike = all(t is None or (t.dtype == x.dtype and t.device == x.device) for t in (*weights, *biases))
    if not alike or not all(_all_finite(weight.detach()) for weight in weights):  # or torch says what is wrong
        return [torch.nn.functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    # Kernels read memory as it is.
    weights, biases = [w.resolve_neg() for w in weights], [b if b is None else b.resolve_neg() for b in biases]
    outs: tuple[Tensor, ...] = _Linears.apply(x, few, *weights, *biases)
    return outs


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, few: Nonzeros, *weights_and_biases: Any) -> tuple[Tensor, ...]:
        count = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        need_weight = any(ctx.needs_input_grad[2 : 2 + count])
        ctx.save_for_backward(x if need_weight else None)
        ctx.few = few if need_weight else None
        ctx.set_materialize_grads(False)
        return tuple(few.times(w.t(), b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        found: list[Tensor | None] = [None] * len(needs)
        for n, grad in enumerate(grads):
            if grad is None:
                continue
            if needs[n] and (torch.is_grad_enabled() or watched_gradient(grad) or not _all_finite(grad)):
                found[n] = grad.t() @ x  # which can be differentiated again
            elif needs[n]:
                found[n] = ctx.few.transposed.times(grad.resolve_neg()).t()
            if needs[len(grads) + n]:
                found[len(grads) + n] = grad.sum(0)
        return None, None, *found
