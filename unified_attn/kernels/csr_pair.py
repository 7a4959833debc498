"""What the CSR kernels have in common: the score of one pair, the cut into blocks.

Everything here is inlined into the kernels. Addresses are bytes; an address of 0 means that the operand is absent.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from unified_attn._compiling import inlined
from unified_attn.kernels.csr_args import HEADS
from unified_attn.kernels.lanes import (
    block_count,
    block_width,
    float_size,
    fma,
    leaky,
    load,
    peek,
    peek_int32,
    peek_int64,
    poke,
    prefetch,
    record_at,
    splat,
    store,
    total,
    zero,
)

DOT, SUM = 0, 1

HEAD_FIELDS = len(HEADS)
K_HEAD, V_HEAD, KVEC_HEAD, VVEC_HEAD, KWEIGHT_HEAD, DK_HEAD, DV_HEAD, DKVEC_HEAD, DVVEC_HEAD, DKWEIGHT_HEAD = range(
    HEAD_FIELDS
)

# Numba's disk cache looks at the file of a kernel, not at those of what it calls. As a constant inside each kernel,
# this number makes any change of these a new cache entry.
_CALLED = (
    "kernels/contract_args.py",
    "kernels/csr_args.py",
    "kernels/csr_dropout.py",
    "kernels/csr_packed.py",
    "kernels/csr_pair.py",
    "kernels/lanes.py",
    "dropout.py",
    "_compiling.py",
)
_PACKAGE = Path(__file__).parent.parent
STAMP = int.from_bytes(
    hashlib.blake2b(b"".join((_PACKAGE / name).read_bytes() for name in _CALLED), digest_size=6).digest()
)


@inlined
def task_of(args, number):  # type: ignore[no-untyped-def]
    """Range of the batch, range of heads, block and how many blocks of the task with this number."""
    a = record_at(args)
    rest, block = number // a.blocks, number % a.blocks
    batch, heads = a.batches + 16 * (rest // a.num_ranges), a.ranges + 16 * (rest % a.num_ranges)
    return (
        peek_int64(batch),
        peek_int64(batch + 8),
        peek_int64(heads),
        peek_int64(heads + 8),
        block,
        a.blocks,
    )


@inlined
def row_at(indptr, rows, cost):  # type: ignore[no-untyped-def]
    """The first row before which at least ``cost`` lies, when a row costs 2 and a pair 1."""
    low, high = 0, rows
    start = peek_int64(indptr)
    while low < high:
        middle = (low + high) >> 1
        if peek_int64(indptr + 8 * middle) - start + 2 * middle < cost:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def block_rows(indptr, rows, even, block, blocks):  # type: ignore[no-untyped-def]
    """The first row of a block and the one after its last: blocks of equal cost, or of equally many rows."""
    if even != 0:
        return (rows * block) // blocks, (rows * (block + 1)) // blocks
    cost = peek_int64(indptr + 8 * rows) - peek_int64(indptr) + 2 * rows
    return row_at(indptr, rows, (cost * block) // blocks), row_at(indptr, rows, (cost * (block + 1)) // blocks)


@inlined
def last_of(ends, lo, hi):  # type: ignore[no-untyped-def]
    """The pair after the last of rows ``lo`` to ``hi - 1``."""
    return peek_int64(ends + 8 * hi - 8) if hi > lo else 0


@inlined
def row_number(numbers, i):  # type: ignore[no-untyped-def]
    """Which row this is: of a piece of a row the row's number."""
    return peek_int64(numbers + 8 * i) if numbers != 0 else i


@inlined
def dot(like, a, b, extra, size):  # type: ignore[no-untyped-def]
    """<a, b + extra> over one head."""
    acc = zero(like)
    step = block_width(like)
    for c in range(block_count(like, size)):
        at = c * step * float_size(like)
        y = load(like, b + at, size - c * step)
        if extra != 0:
            y = y + load(like, extra + at, size - c * step)
        acc = fma(load(like, a + at, size - c * step), y, acc)
    return total(acc)


@inlined
def summed(like, q, k, extra, att, slope, size):  # type: ignore[no-untyped-def]
    """sum_d att_d leaky_relu(q_d + k_d + extra_d) over one head."""
    acc = zero(like)
    step = block_width(like)
    for c in range(block_count(like, size)):
        at = c * step * float_size(like)
        left = size - c * step
        z = load(like, q + at, left) + load(like, k + at, left)
        if extra != 0:
            z = z + load(like, extra + at, left)
        acc = fma(load(like, att + at, left), leaky(z, slope), acc)
    return total(acc)


@inlined
def row_of_heads(heads):  # type: ignore[no-untyped-def]
    """Heads, padded to a multiple of eight."""
    return (heads + 7) // 8 * 8


@inlined
def lined_key(like, k, k_n, col, t, extra, extra_e, code, edge, to):  # type: ignore[no-untyped-def]
    """The key of pair t in eight heads, with what the pair adds to it."""
    key = load(like, k + peek_int32(col + 4 * t) * k_n + to, 8)
    if extra != 0:
        key = key + load(like, extra + vector_row(code, peek_int32(edge + 4 * t)) * extra_e + to, 8)
    return key


@inlined
def lined_scores(  # type: ignore[no-untyped-def]
    like, scores, step, q, k, k_n, col, n, att, slope, scale, side, extra, extra_e, code, edge
):
    """``scale att leaky_relu(q + k + extra)`` of n pairs, eight heads at a time: see ``lined`` in the record."""
    for to in range(0, side, 8 * float_size(like)):
        own, factor = load(like, q + to, 8), load(like, att + to, 8) * splat(like, scale)
        for t in range(n):
            z = own + lined_key(like, k, k_n, col, t, extra, extra_e, code, edge, to)
            store(scores + t * step + to, leaky(z, slope) * factor, 8)


@inlined
def add_lined(like, scores, step, add, add_e, add_h, edge, n, heads):  # type: ignore[no-untyped-def]
    """Adds to the scores of n pairs what they bring, eight heads at a time: see ``added`` in the record."""
    for t in range(n):
        own, place = add + peek_int32(edge + 4 * t) * add_e, scores + t * step
        for h in range(0, heads, 8):
            at, left = h * float_size(like), heads - h
            extra = splat(like, peek(like, own))
            if add_h != 0:
                extra = load(like, own + at, left)
            store(place + at, load(like, place + at, left) + extra, left)


@inlined
def vector_row(code, e):  # type: ignore[no-untyped-def]
    """The row of pair e's vector: in a table the one of its code, else its own."""
    if code != 0:
        return peek_int32(code + 4 * e)
    return e


@inlined
def projected(like, features, weight, step, count, left):  # type: ignore[no-untyped-def]
    """sum_f features_f weight_f over one block; rows of ``weight`` are ``step`` apart."""
    acc = zero(like)
    for f in range(count):
        x = peek(like, features + f * float_size(like))
        acc = fma(splat(like, x), load(like, weight + f * step, left), acc)
    return acc


@inlined
def summed_projected(like, q, k, extra, features, weight, step, count, att, slope, size):  # type: ignore[no-untyped-def]
    """:func:`summed` with a projection of the pair's features inside."""
    acc = zero(like)
    width = block_width(like)
    for c in range(block_count(like, size)):
        at = c * width * float_size(like)
        left = size - c * width
        z = load(like, q + at, left) + load(like, k + at, left)
        if extra != 0:
            z = z + load(like, extra + at, left)
        z = z + projected(like, features, weight + at, step, count, left)
        acc = fma(load(like, att + at, left), leaky(z, slope), acc)
    return total(acc)


@inlined
def add_projected(like, grad, features, weight, dfeatures, dweight, step, dstep, count, left):  # type: ignore[no-untyped-def]
    """Adds the gradients of :func:`projected` for one block, in memory; an address of 0 is left out."""
    one = float_size(like)
    for f in range(count):
        if dweight != 0:
            to = dweight + f * dstep
            x = peek(like, features + f * one)
            store(to, fma(splat(like, x), grad, load(like, to, left)), left)
        if dfeatures != 0:
            to = dfeatures + f * one
            poke(like, to, peek(like, to) + total(grad * load(like, weight + f * step, left)))


@inlined
def add_scaled(like, target, factor, source, size):  # type: ignore[no-untyped-def]
    """``target += factor * source`` over one head, in memory."""
    step = block_width(like)
    times = splat(like, factor)
    for c in range(block_count(like, size)):
        at = c * step * float_size(like)
        left = size - c * step
        store(target + at, fma(times, load(like, source + at, left), load(like, target + at, left)), left)


@inlined
def touch(address, parts, step, lines):  # type: ignore[no-untyped-def]
    """Prefetch one node: ``lines`` cache lines of each of ``parts`` pieces."""
    for part in range(parts):
        at = address + part * step
        for line in range(lines):
            prefetch(at + 64 * line)
