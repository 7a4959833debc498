"""The loops of ``contract``. Needs numba.

Addresses are bytes, and so are strides: ``x_n`` of a node of x, ``x_h`` of a head. All else is dense.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import lru_cache
from typing import Any

from unified_attn._compiling import inlined, of_integers
from unified_attn.kernels.csr_pair import STAMP, add_scaled, dot
from unified_attn.kernels.lanes import block_count, block_width, float_size, lanes, peek, poke, store, zero


@inlined
def products(like, x, x_h, kv_heads, size, att, out, heads):
    """``out[h] = <x[h // group], att[h]>`` of one node."""
    one = float_size(like)
    group = max(heads // kv_heads, 1)
    for h in range(heads):
        poke(like, out + h * one, dot(like, x + (h // group) * x_h, att + h * size * one, 0, size))


@inlined
def add_gradients(like, x, x_h, kv_heads, size, att, grad, heads, dx, datt):
    """Adds to one node's ``dx [kv_heads, size]`` and to ``datt [heads, size]``; x is not read where a gradient is 0."""
    one = float_size(like)
    group = max(heads // kv_heads, 1)
    for h in range(heads):
        slope = peek(like, grad + h * one)
        if slope != 0:
            add_scaled(like, dx + (h // group) * size * one, slope, att + h * size * one, size)
            add_scaled(like, datt + h * size * one, slope, x + (h // group) * x_h, size)


@lru_cache(None)
def make_forward(bits: int, width: int, kind: int) -> Any:
    """The kernel: both products of the nodes ``start`` to ``stop - 1``."""
    stamp = STAMP

    @of_integers
    def forward(x, x_n, x_h, kv_heads, size, start, stop, first, a, a_heads, second, b, b_heads):
        like = lanes(bits, width, kind)
        one = float_size(like)
        if size + stamp < 0:
            return
        for n in range(start, stop):
            products(like, x + n * x_n, x_h, kv_heads, size, first, a + n * a_heads * one, a_heads)
            products(like, x + n * x_n, x_h, kv_heads, size, second, b + n * b_heads * one, b_heads)

    return forward


@lru_cache(None)
def make_backward(bits: int, width: int, kind: int) -> Any:
    """The kernel: writes ``dx [N, kv_heads, size]`` of these nodes, adds to ``da`` and ``db``, both of this task."""
    stamp = STAMP

    @of_integers
    def backward(x, x_n, x_h, kv_heads, size, start, stop, first, a, a_heads, second, b, b_heads, dx, da, db):
        like = lanes(bits, width, kind)
        one = float_size(like)
        if size + stamp < 0:
            return
        for n in range(start, stop):
            dx_n = dx + n * kv_heads * size * one
            for h in range(kv_heads):
                for c in range(block_count(like, size)):
                    at = c * block_width(like)
                    store(dx_n + (h * size + at) * one, zero(like), size - at)
            x_at = x + n * x_n
            add_gradients(like, x_at, x_h, kv_heads, size, first, a + n * a_heads * one, a_heads, dx_n, da)
            add_gradients(like, x_at, x_h, kv_heads, size, second, b + n * b_heads * one, b_heads, dx_n, db)

    return backward
