"""The loops of ``mostly_zero``. Needs numba.

Addresses and strides are bytes. A list of nonzeros holds, for each row, where its first is and the one after its last.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import lru_cache
from typing import Any

from unified_attn._compiling import of_integers
from unified_attn.kernels.csr_pair import STAMP
from unified_attn.kernels.lanes import (
    MANY,
    TAIL,
    block_count,
    block_width,
    first_bit,
    float_size,
    fma,
    lanes,
    load,
    nonzero_bits,
    peek,
    peek_int32,
    peek_int64,
    poke,
    poke_int32,
    poke_int64,
    splat,
    store,
    take,
    zero,
)

ROWS = 128
"""Rows a task."""


@lru_cache(None)
def make_scan(bits: int) -> Any:
    """The kernel ``(args, scratch, number)`` that lists the nonzeros of x, one task's room after another.

    ``args``: x, its stride, rows, size; room of a task; begins, ends; columns (int32), values; and a number that
    counts the tasks whose room was too small.
    """
    stamp = STAMP

    @of_integers
    def scan(args, scratch, number):
        like = lanes(bits, 16, TAIL)
        x, x_n, rows, size = peek_int64(args), peek_int64(args + 8), peek_int64(args + 16), peek_int64(args + 24)
        room, begins, ends = peek_int64(args + 32), peek_int64(args + 40), peek_int64(args + 48)
        columns, values = peek_int64(args + 56), peek_int64(args + 64)
        if rows + stamp < 0:
            return
        one = float_size(like)
        at = number * room
        last = at + room
        for i in range(number * ROWS, min((number + 1) * ROWS, rows)):
            poke_int64(begins + 8 * i, at)
            for c in range(block_count(like, size)):
                first = c * block_width(like)
                row = x + i * x_n + first * one
                left = nonzero_bits(load(like, row, size - first))
                while left != 0:
                    place = first_bit(left)
                    left = left & (left - 1)
                    if at == last:
                        take(args + 72)
                        return
                    poke_int32(columns + 4 * at, first + place)
                    poke(like, values + at * one, peek(like, row + place * one))
                    at += 1
            poke_int64(ends + 8 * i, at)

    return scan


@lru_cache(None)
def make_product(bits: int, width: int, kind: int) -> Any:
    """The kernel ``(args, scratch, number)``: ``out[i] = start + sum over a row's nonzeros of value table[index]``.

    ``args``: begins, ends; indices (int32), values; table, its stride; ``start`` or 0; out, its stride; rows, size.
    """
    stamp = STAMP

    @of_integers
    def product(args, scratch, number):
        like = lanes(bits, width, kind)
        begins, ends, indices, values = (
            peek_int64(args),
            peek_int64(args + 8),
            peek_int64(args + 16),
            peek_int64(args + 24),
        )
        table, table_n, start = peek_int64(args + 32), peek_int64(args + 40), peek_int64(args + 48)
        out, out_n = peek_int64(args + 56), peek_int64(args + 64)
        rows, size = peek_int64(args + 72), peek_int64(args + 80)
        if rows + stamp < 0:
            return
        one = float_size(like)
        for i in range(number * ROWS, min((number + 1) * ROWS, rows)):
            begin, end = peek_int64(begins + 8 * i), peek_int64(ends + 8 * i)
            for c in range(block_count(like, size)):
                at, left = c * block_width(like) * one, size - c * block_width(like)
                acc = zero(like)
                if start != 0:
                    acc = load(like, start + at, left)
                for p in range(begin, end):
                    row = table + peek_int32(indices + 4 * p) * table_n + at
                    acc = fma(splat(like, peek(like, values + p * one)), load(like, row, left), acc)
                store(out + i * out_n + at, acc, left)

    return product


@lru_cache(None)
def make_turn(bits: int) -> Any:
    """The kernel ``(args, scratch, number)`` of one task: the nonzeros column by column, in each in the order of rows.

    ``args``: begins, ends, columns, values; rows, size; and of the columns begins, ends, rows (int32) and values.
    """
    stamp = STAMP

    @of_integers
    def turn(args, scratch, number):
        like = lanes(bits, 8, MANY)
        begins, ends, columns, values = (
            peek_int64(args),
            peek_int64(args + 8),
            peek_int64(args + 16),
            peek_int64(args + 24),
        )
        rows, size, t_begins, t_ends = (
            peek_int64(args + 32),
            peek_int64(args + 40),
            peek_int64(args + 48),
            peek_int64(args + 56),
        )
        t_rows, t_values = peek_int64(args + 64), peek_int64(args + 72)
        if rows + stamp < 0:
            return
        one = float_size(like)
        for c in range(size):
            poke_int64(t_ends + 8 * c, 0)
        for i in range(rows):
            for p in range(peek_int64(begins + 8 * i), peek_int64(ends + 8 * i)):
                place = t_ends + 8 * peek_int32(columns + 4 * p)
                poke_int64(place, peek_int64(place) + 1)
        at = 0
        for c in range(size):  # each column's end is where its next number goes
            count = peek_int64(t_ends + 8 * c)
            poke_int64(t_begins + 8 * c, at)
            poke_int64(t_ends + 8 * c, at)
            at += count
        for i in range(rows):
            for p in range(peek_int64(begins + 8 * i), peek_int64(ends + 8 * i)):
                place = t_ends + 8 * peek_int32(columns + 4 * p)
                to = peek_int64(place)
                poke_int32(t_rows + 4 * to, i)
                poke(like, t_values + to * one, peek(like, values + p * one))
                poke_int64(place, to + 1)

    return turn
