"""The loops of ``contract``. Needs numba."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import partial

from unified_attn._compiling import kernel

_SUMS = frozenset({"reassoc", "contract", "nsz"})  # lets the loop over d vectorise


@partial(kernel, fastmath=_SUMS)
def forward(task, b, start, stop, x, first, second, a, c):
    """``a[b, n, h] = <x[b, n, h // group], first[h]>`` and ``c`` with ``second``, for one block of nodes."""
    size = x.shape[3]
    for n in range(start, stop):
        for att, out in ((first, a), (second, c)):
            heads = att.shape[0]
            for h in range(heads):
                kv = h // max(heads // x.shape[2], 1)
                out[b, n, h] = 0
                total = out[b, n, h]  # a zero of the right type
                for d in range(size):
                    total += x[b, n, kv, d] * att[h, d]
                out[b, n, h] = total


@partial(kernel, fastmath=_SUMS)
def backward(task, b, start, stop, x, first, second, g, e, dx, da, dc):
    """Writes ``dx[b, n]``, adds to this block's partial sums ``[Hq, D]``; x is not read where the gradient is 0."""
    size = x.shape[3]
    for n in range(start, stop):
        dx[b, n] = 0
        for att, grad, datt in ((first, g, da), (second, e, dc)):
            heads = att.shape[0]
            for h in range(heads):
                kv = h // max(heads // x.shape[2], 1)
                slope = grad[b, n, h]
                if slope != 0:
                    for d in range(size):
                        dx[b, n, kv, d] += slope * att[h, d]
                    for d in range(size):
                        datt[task, h, d] += slope * x[b, n, kv, d]
