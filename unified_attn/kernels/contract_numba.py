"""The loops of ``contract``. Needs numba."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import lru_cache
from typing import Any

from unified_attn._compiling import inlined, of_integers
from unified_attn.kernels.contract_args import (
    ADDS,
    ATT,
    BLOCK,
    BLOCKS,
    DATT,
    DATT_B,
    DX,
    DX_B,
    FIRST,
    HEADS,
    KV_HEADS,
    NODES,
    PRODUCT,
    PRODUCT_B,
    SECOND,
    SIZE,
    X_B,
    X_H,
    X_N,
    X,
)
from unified_attn.kernels.csr_packed import eight_products, is_eight
from unified_attn.kernels.csr_pair import STAMP, dot
from unified_attn.kernels.lanes import (
    block_count,
    block_width,
    float_size,
    fma,
    lanes,
    load,
    peek,
    peek_int64,
    poke,
    real,
    splat,
    store,
    zero,
)


@inlined
def word(args, place):
    """The number at this place."""
    return peek_int64(args + 8 * place)


@inlined
def place(like, args, side, item, n):
    """Where the products of one node are, or their gradients."""
    return (
        word(args, side + PRODUCT)
        + item * word(args, side + PRODUCT_B)
        + n * word(args, side + HEADS) * float_size(like)
    )


@inlined
def products(like, args, side, x, out):
    """``out[h] = <x[h // group], att[h]>`` of one node."""
    size, x_h, heads = word(args, SIZE), word(args, X_H), word(args, side + HEADS)
    group = max(heads // word(args, KV_HEADS), 1)
    for h in range(heads):
        att = word(args, side + ATT) + h * size * float_size(like)
        poke(like, out + h * float_size(like), dot(like, x + (h // group) * x_h, att, 0, size))


@inlined
def packed_products(like, args, side, x, out):
    """The same of heads of eight floats next to each other, as many in x as in att."""
    for h in range(0, 4 * word(args, side + HEADS), 32):
        store(out + h, eight_products(like, x + 8 * h, word(args, side + ATT) + 8 * h), 8)


@inlined
def slope_at(like, grad, heads, n, own, there):
    """The gradient of one product; 0 where a side is not there."""
    return peek(like, grad + (n * heads + own) * float_size(like)) if there else real(like, 0.0)


@lru_cache(None)
def make_forward(bits: int, width: int, kind: int) -> Any:
    """The kernel ``(args, scratch, number)``: both products of the nodes of one block."""
    stamp, of_eight = STAMP, int(is_eight(bits, width, kind))

    @of_integers
    def forward(args, scratch, number):
        like = lanes(bits, width, kind)
        blocks, nodes = word(args, BLOCKS), word(args, NODES)
        if nodes + stamp < 0:
            return
        item, block = number // blocks, number % blocks
        heads, kv_heads = word(args, FIRST + HEADS), word(args, KV_HEADS)
        packed = of_eight and heads % 8 == 0 and heads == kv_heads and word(args, X_H) == 32
        packed = packed and (word(args, SECOND + HEADS) == heads or word(args, SECOND + HEADS) == 0)
        for n in range(block * BLOCK, min((block + 1) * BLOCK, nodes)):
            x = word(args, X) + item * word(args, X_B) + n * word(args, X_N)
            first, second = place(like, args, FIRST, item, n), place(like, args, SECOND, item, n)
            if of_eight and packed:
                packed_products(like, args, FIRST, x, first)
                packed_products(like, args, SECOND, x, second)
            else:
                products(like, args, FIRST, x, first)
                products(like, args, SECOND, x, second)

    return forward


@lru_cache(None)
def make_backward(bits: int, width: int, kind: int) -> Any:
    """The kernel ``(args, scratch, number)``: dx of the nodes of one block, and its own part of datt.

    x is not read where a node's gradients are 0.
    """
    stamp = STAMP

    @of_integers
    def backward(args, scratch, number):
        like = lanes(bits, width, kind)
        one, size, kv_heads = float_size(like), word(args, SIZE), word(args, KV_HEADS)
        blocks, nodes = word(args, BLOCKS), word(args, NODES)
        if nodes + stamp < 0:
            return
        item, block = number // blocks, number % blocks
        begin, end, adds = block * BLOCK, min((block + 1) * BLOCK, nodes), word(args, ADDS) != 0
        x, x_n, dx = word(args, X) + item * word(args, X_B), word(args, X_N), word(args, DX) + item * word(args, DX_B)
        a_heads, b_heads = word(args, FIRST + HEADS), word(args, SECOND + HEADS)
        a_group, b_group = a_heads // kv_heads, b_heads // kv_heads
        a_grad, b_grad = place(like, args, FIRST, item, 0), place(like, args, SECOND, item, 0)
        a_sum = word(args, FIRST + DATT) + number * word(args, FIRST + DATT_B)
        b_sum = word(args, SECOND + DATT) + number * word(args, SECOND + DATT_B)
        for h in range(kv_heads):
            for c in range(block_count(like, size)):
                at = c * block_width(like) * one
                left = size - c * block_width(like)
                for g in range(max(a_group, b_group)):
                    has_a, has_b, a_own, b_own = g < a_group, g < b_group, h * a_group + g, h * b_group + g
                    a_at, b_at = a_own * size * one + at, b_own * size * one + at
                    a, b, a_acc, b_acc = zero(like), zero(like), zero(like), zero(like)
                    if has_a:
                        a = load(like, word(args, FIRST + ATT) + a_at, left)
                    if has_b:
                        b = load(like, word(args, SECOND + ATT) + b_at, left)
                    for n in range(begin, end):
                        s = slope_at(like, a_grad, a_heads, n, a_own, has_a)
                        t = slope_at(like, b_grad, b_heads, n, b_own, has_b)
                        to = dx + (n * kv_heads + h) * size * one + at
                        grad = fma(splat(like, s), a, splat(like, t) * b)
                        if g > 0 or adds:
                            grad = grad + load(like, to, left)
                        store(to, grad, left)
                        if s != 0 or t != 0:
                            y = load(like, x + n * x_n + h * word(args, X_H) + at, left)
                            a_acc, b_acc = fma(splat(like, s), y, a_acc), fma(splat(like, t), y, b_acc)
                    if has_a:
                        store(a_sum + a_at, a_acc, left)
                    if has_b:
                        store(b_sum + b_at, b_acc, left)

    return backward
