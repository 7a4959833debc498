"""Linear maps of features that are mostly zero, such as bags of words: what is zero is neither multiplied nor read.

The features of Cora hold 18 words of 1,433; a dense product spends 99 % of its time on zeros. Here one pass over x
lists what is there, and two sparse products take the place of the dense ones, forward and for the weight's gradient.
Nothing is kept from call to call: no key could tell that x is unchanged without reading it.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

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


class Nonzeros(NamedTuple):
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

    def times(self, table: Tensor, start: Tensor | None = None) -> Tensor:
        """The matrix times ``table [columns, size]``, plus ``start [size]``."""
        from unified_attn.kernels.mostly_zero_numba import ROWS, make_product

        bits, size = 8 * table.element_size(), table.shape[1]
        start = None if start is None else start.contiguous()
        kernel, tasks = make_product(bits, *lanes(size, bits)), -(-self.shape[0] // ROWS)
        return self._product(kernel, tasks, table, self.shape[0], 0 if start is None else start.data_ptr())

    def transposed_times(self, table: Tensor) -> Tensor:
        """The transposed matrix times ``table [N, size]``."""
        from unified_attn.kernels.mostly_zero_numba import make_transposed_product

        kernel, tasks = make_transposed_product(8 * table.element_size()), -(-table.shape[1] // 16)
        return self._product(kernel, tasks, table, self.shape[1], self.shape[1])

    def _product(self, kernel: Any, tasks: int, table: Tensor, rows: int, extra: int) -> Tensor:
        table, size = table.contiguous(), table.shape[1]
        out, step = empty(table, rows, size), size * table.element_size()
        parts = [x.data_ptr() for x in (self.begins, self.ends, self.columns, self.values, table)]
        args = threads.words(*parts, step, extra, out.data_ptr(), step, self.shape[0], size)
        threads.run(kernel.address, ctypes.addressof(args), tasks)
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


def linear(x: Tensor, few: Nonzeros, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b from the nonzeros of x.

    Args:
        x: ``[N, F]``, which gets no gradient.
        few: Its nonzeros.
        weight: ``[D, F]``.
        bias: ``[D]`` or None.

    Returns:
        ``[N, D]``. Numbers are added in another order than by a dense product; weights that are not finite go there.
    """
    alike = all(t is None or (t.dtype == x.dtype and t.device == x.device) for t in (weight, bias))
    if not alike or not _all_finite(weight.detach()):  # or torch says what is wrong
        return torch.nn.functional.linear(x, weight, bias)
    out: Tensor = _Linear.apply(weight, bias, x, few)
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, x: Tensor, few: Nonzeros) -> Tensor:
        need_weight = ctx.needs_input_grad[0]
        ctx.save_for_backward(x if need_weight else None)
        ctx.few = few if need_weight else None
        return few.times(weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        need_weight, need_bias, *_ = ctx.needs_input_grad
        dweight: Tensor | None = None
        if need_weight and (torch.is_grad_enabled() or watched_gradient(grad) or not _all_finite(grad)):
            dweight = grad.t() @ x  # which can be differentiated again
        elif need_weight:
            dweight = ctx.few.transposed_times(grad).t()
        return dweight, grad.sum(0) if need_bias else None, None, None
