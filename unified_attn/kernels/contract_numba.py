"""The loops of ``contract``. Needs numba."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import partial

from unified_attn._compiling import kernel

_SUMS = frozenset({"reassoc", "contract", "nsz"})  # lets the loop over d vectorise


@partial(kernel, fastmath=_SUMS)
def forward(task, b, start, stop, x, att, out):
    """``out[b, n, h] = <x[b, n, h // group], att[h]>`` for one block of nodes."""
    heads, size = att.shape
    group = heads // x.shape[2]
    for n in range(start, stop):
        for h in range(heads):
            out[b, n, h] = 0
            total = out[b, n, h]  # a zero of the right type
            for d in range(size):
                total += x[b, n, h // group, d] * att[h, d]
            out[b, n, h] = total


@partial(kernel, fastmath=_SUMS)
def backward(task, b, start, stop, grad, x, att, dx, partial):
    """Writes ``dx[b, n]``, adds to this block's ``partial [Hq, D]``; x is not read where the gradient is 0."""
    heads, size = att.shape
    group = heads // x.shape[2]
    for n in range(start, stop):
        dx[b, n] = 0
        for h in range(heads):
            g = grad[b, n, h]
            if g != 0:
                for d in range(size):
                    dx[b, n, h // group, d] += g * att[h, d]
                for d in range(size):
                    partial[task, h, d] += g * x[b, n, h // group, d]
