"""Heads of eight floats that lie next to each other, eight heads at a time.

Where heads are that small, what is done once a head (its place in each operand, a loop over few pairs, a sum across the
lanes) takes longer than the sums. Here a pair's row of 64 floats is read once for eight heads, whose sums across the
lanes are formed together. ``step`` is from pair to pair in a plane of scores: see ``csr_args``.
"""

from unified_attn._compiling import inlined
from unified_attn.kernels.lanes import (
    ONE,
    by_turns,
    every_other,
    finite,
    fma,
    leaky,
    leaky_gain,
    load,
    peek_int32,
    splat,
    spread,
    store,
    totals,
    zero,
)


def is_eight(bits: int, width: int, kind: int) -> bool:
    """Whether a kernel for these vectors may meet such heads."""
    return (bits, width, kind) == (32, 8, ONE)


@inlined
def eight_products(like, a, b):  # type: ignore[no-untyped-def]
    """<a, b> of eight heads."""
    return totals(
        load(like, a, 8) * load(like, b, 8),
        load(like, a + 32, 8) * load(like, b + 32, 8),
        load(like, a + 64, 8) * load(like, b + 64, 8),
        load(like, a + 96, 8) * load(like, b + 96, 8),
        load(like, a + 128, 8) * load(like, b + 128, 8),
        load(like, a + 160, 8) * load(like, b + 160, 8),
        load(like, a + 192, 8) * load(like, b + 192, 8),
        load(like, a + 224, 8) * load(like, b + 224, 8),
    )


@inlined
def packed_dots(like, scores, step, own, x, x_n, col, n, scale, side):  # type: ignore[no-untyped-def]
    """``scale <own, x_j>`` of n pairs."""
    times = splat(like, scale)
    for to in range(0, side, 32):
        a, base = own + 8 * to, x + 8 * to
        a0, a1, a2, a3 = load(like, a, 8), load(like, a + 32, 8), load(like, a + 64, 8), load(like, a + 96, 8)
        a4, a5, a6, a7 = load(like, a + 128, 8), load(like, a + 160, 8), load(like, a + 192, 8), load(like, a + 224, 8)
        for t in range(n):
            y = base + peek_int32(col + 4 * t) * x_n
            s = totals(
                a0 * load(like, y, 8),
                a1 * load(like, y + 32, 8),
                a2 * load(like, y + 64, 8),
                a3 * load(like, y + 96, 8),
                a4 * load(like, y + 128, 8),
                a5 * load(like, y + 160, 8),
                a6 * load(like, y + 192, 8),
                a7 * load(like, y + 224, 8),
            )
            store(scores + t * step + to, s * times, 8)


@inlined
def packed_sums(like, scores, step, own, x, x_n, col, n, att, slope, scale, side):  # type: ignore[no-untyped-def]
    """``scale <att, leaky_relu(own + x_j)>`` of n pairs."""
    times = splat(like, scale)
    for to in range(0, side, 32):
        a, base, f = own + 8 * to, x + 8 * to, att + 8 * to
        for t in range(n):
            y = base + peek_int32(col + 4 * t) * x_n
            s = totals(
                load(like, f, 8) * leaky(load(like, a, 8) + load(like, y, 8), slope),
                load(like, f + 32, 8) * leaky(load(like, a + 32, 8) + load(like, y + 32, 8), slope),
                load(like, f + 64, 8) * leaky(load(like, a + 64, 8) + load(like, y + 64, 8), slope),
                load(like, f + 96, 8) * leaky(load(like, a + 96, 8) + load(like, y + 96, 8), slope),
                load(like, f + 128, 8) * leaky(load(like, a + 128, 8) + load(like, y + 128, 8), slope),
                load(like, f + 160, 8) * leaky(load(like, a + 160, 8) + load(like, y + 160, 8), slope),
                load(like, f + 192, 8) * leaky(load(like, a + 192, 8) + load(like, y + 192, 8), slope),
                load(like, f + 224, 8) * leaky(load(like, a + 224, 8) + load(like, y + 224, 8), slope),
            )
            store(scores + t * step + to, s * times, 8)


@inlined
def packed_stats(like, scores, deltas, step, stats, stats_n, col, n, side):  # type: ignore[no-untyped-def]
    """Takes the log-sum-exp of each pair's query from its score, and puts down its delta: they lie by turns."""
    for to in range(0, side, 32):
        for t in range(n):
            at = stats + peek_int32(col + 4 * t) * stats_n + 2 * to
            low, high = load(like, at, 8), load(like, at + 32, 8)
            place = scores + t * step + to
            store(place, load(like, place, 8) - every_other(low, high, 0), 8)
            store(deltas + t * step + to, every_other(low, high, 1), 8)


@inlined
def packed_deltas(like, lses, deltas, stats, lse, g_out, out, side):  # type: ignore[no-untyped-def]
    """A query's log-sum-exp, 0 in place of -inf, and <g_out, out>, both also by turns for ``stats``."""
    for to in range(0, side, 32):
        a, b = g_out + 8 * to, out + 8 * to
        delta = eight_products(like, a, b)
        own = load(like, lse + to, 8)
        store(stats + 2 * to, by_turns(own, delta, 0), 8)
        store(stats + 2 * to + 32, by_turns(own, delta, 1), 8)
        store(lses + to, finite(own), 8)
        store(deltas + to, delta, 8)


@inlined
def packed_mix(like, target, weights, step, x, x_n, col, n, fades, norms, side):  # type: ignore[no-untyped-def]
    """``target = norm (fade target + sum_t weight_t x_j)``; without ``fades`` target counts for 0, without norms 1."""
    for to in range(0, side, 32):
        base, out = x + 8 * to, target + 8 * to
        b0, b1, b2, b3 = zero(like), zero(like), zero(like), zero(like)
        b4, b5, b6, b7 = zero(like), zero(like), zero(like), zero(like)
        for t in range(n):
            w, y = load(like, weights + t * step + to, 8), base + peek_int32(col + 4 * t) * x_n
            b0 = fma(spread(w, 0), load(like, y, 8), b0)
            b1 = fma(spread(w, 1), load(like, y + 32, 8), b1)
            b2 = fma(spread(w, 2), load(like, y + 64, 8), b2)
            b3 = fma(spread(w, 3), load(like, y + 96, 8), b3)
            b4 = fma(spread(w, 4), load(like, y + 128, 8), b4)
            b5 = fma(spread(w, 5), load(like, y + 160, 8), b5)
            b6 = fma(spread(w, 6), load(like, y + 192, 8), b6)
            b7 = fma(spread(w, 7), load(like, y + 224, 8), b7)
        if fades != 0:
            f = load(like, fades + to, 8)
            b0 = fma(spread(f, 0), load(like, out, 8), b0)
            b1 = fma(spread(f, 1), load(like, out + 32, 8), b1)
            b2 = fma(spread(f, 2), load(like, out + 64, 8), b2)
            b3 = fma(spread(f, 3), load(like, out + 96, 8), b3)
            b4 = fma(spread(f, 4), load(like, out + 128, 8), b4)
            b5 = fma(spread(f, 5), load(like, out + 160, 8), b5)
            b6 = fma(spread(f, 6), load(like, out + 192, 8), b6)
            b7 = fma(spread(f, 7), load(like, out + 224, 8), b7)
        if norms != 0:
            f = load(like, norms + to, 8)
            b0, b1, b2, b3 = b0 * spread(f, 0), b1 * spread(f, 1), b2 * spread(f, 2), b3 * spread(f, 3)
            b4, b5, b6, b7 = b4 * spread(f, 4), b5 * spread(f, 5), b6 * spread(f, 6), b7 * spread(f, 7)
        store(out, b0, 8)
        store(out + 32, b1, 8)
        store(out + 64, b2, 8)
        store(out + 96, b3, 8)
        store(out + 128, b4, 8)
        store(out + 160, b5, 8)
        store(out + 192, b6, 8)
        store(out + 224, b7, 8)


@inlined
def packed_pulls(like, target, slopes, step, own, x, x_n, col, n, att, slope, side):  # type: ignore[no-untyped-def]
    """Adds ``att sum_t slope_t leaky_relu'(own + x_j)``: the gradient of :func:`packed_sums` by own."""
    for to in range(0, side, 32):
        a, base, f, out = own + 8 * to, x + 8 * to, att + 8 * to, target + 8 * to
        b0, b1, b2, b3 = zero(like), zero(like), zero(like), zero(like)
        b4, b5, b6, b7 = zero(like), zero(like), zero(like), zero(like)
        for t in range(n):
            s, y = load(like, slopes + t * step + to, 8), base + peek_int32(col + 4 * t) * x_n
            b0 = fma(spread(s, 0), leaky_gain(load(like, a, 8) + load(like, y, 8), slope), b0)
            b1 = fma(spread(s, 1), leaky_gain(load(like, a + 32, 8) + load(like, y + 32, 8), slope), b1)
            b2 = fma(spread(s, 2), leaky_gain(load(like, a + 64, 8) + load(like, y + 64, 8), slope), b2)
            b3 = fma(spread(s, 3), leaky_gain(load(like, a + 96, 8) + load(like, y + 96, 8), slope), b3)
            b4 = fma(spread(s, 4), leaky_gain(load(like, a + 128, 8) + load(like, y + 128, 8), slope), b4)
            b5 = fma(spread(s, 5), leaky_gain(load(like, a + 160, 8) + load(like, y + 160, 8), slope), b5)
            b6 = fma(spread(s, 6), leaky_gain(load(like, a + 192, 8) + load(like, y + 192, 8), slope), b6)
            b7 = fma(spread(s, 7), leaky_gain(load(like, a + 224, 8) + load(like, y + 224, 8), slope), b7)
        store(out, fma(b0, load(like, f, 8), load(like, out, 8)), 8)
        store(out + 32, fma(b1, load(like, f + 32, 8), load(like, out + 32, 8)), 8)
        store(out + 64, fma(b2, load(like, f + 64, 8), load(like, out + 64, 8)), 8)
        store(out + 96, fma(b3, load(like, f + 96, 8), load(like, out + 96, 8)), 8)
        store(out + 128, fma(b4, load(like, f + 128, 8), load(like, out + 128, 8)), 8)
        store(out + 160, fma(b5, load(like, f + 160, 8), load(like, out + 160, 8)), 8)
        store(out + 192, fma(b6, load(like, f + 192, 8), load(like, out + 192, 8)), 8)
        store(out + 224, fma(b7, load(like, f + 224, 8), load(like, out + 224, 8)), 8)


@inlined
def packed_att(like, datt, slopes, step, own, x, x_n, col, n, slope, side):  # type: ignore[no-untyped-def]
    """Adds ``sum_t slope_t leaky_relu(own + x_j)``: its gradient by att."""
    for to in range(0, side, 32):
        a, base, out = own + 8 * to, x + 8 * to, datt + 8 * to
        b0, b1, b2, b3 = zero(like), zero(like), zero(like), zero(like)
        b4, b5, b6, b7 = zero(like), zero(like), zero(like), zero(like)
        for t in range(n):
            s, y = load(like, slopes + t * step + to, 8), base + peek_int32(col + 4 * t) * x_n
            b0 = fma(spread(s, 0), leaky(load(like, a, 8) + load(like, y, 8), slope), b0)
            b1 = fma(spread(s, 1), leaky(load(like, a + 32, 8) + load(like, y + 32, 8), slope), b1)
            b2 = fma(spread(s, 2), leaky(load(like, a + 64, 8) + load(like, y + 64, 8), slope), b2)
            b3 = fma(spread(s, 3), leaky(load(like, a + 96, 8) + load(like, y + 96, 8), slope), b3)
            b4 = fma(spread(s, 4), leaky(load(like, a + 128, 8) + load(like, y + 128, 8), slope), b4)
            b5 = fma(spread(s, 5), leaky(load(like, a + 160, 8) + load(like, y + 160, 8), slope), b5)
            b6 = fma(spread(s, 6), leaky(load(like, a + 192, 8) + load(like, y + 192, 8), slope), b6)
            b7 = fma(spread(s, 7), leaky(load(like, a + 224, 8) + load(like, y + 224, 8), slope), b7)
        store(out, load(like, out, 8) + b0, 8)
        store(out + 32, load(like, out + 32, 8) + b1, 8)
        store(out + 64, load(like, out + 64, 8) + b2, 8)
        store(out + 96, load(like, out + 96, 8) + b3, 8)
        store(out + 128, load(like, out + 128, 8) + b4, 8)
        store(out + 160, load(like, out + 160, 8) + b5, 8)
        store(out + 192, load(like, out + 192, 8) + b6, 8)
        store(out + 224, load(like, out + 224, 8) + b7, 8)
