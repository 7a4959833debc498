"""The forward kernel: softmax and weighted sum of each row, one chunk of pairs at a time.

A row that fits a chunk is done in three sweeps over all its heads: scores into scratch, exponentials, weighted sums of
values. What the sweeps read again lies in the cache by then. A longer row keeps its running maximum and sum, and
rescales. See ``csr_args`` for where a score lies.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from unified_attn._compiling import of_integers
from unified_attn.dropout import HEAD_STEP
from unified_attn.kernels.csr_args import CHUNK, LEFT_OUT
from unified_attn.kernels.csr_dropout import counted, gains, kept
from unified_attn.kernels.csr_packed import is_eight, packed_dots, packed_mix, packed_sums
from unified_attn.kernels.csr_pair import (
    DOT,
    HEAD_FIELDS,
    K_HEAD,
    KVEC_HEAD,
    KWEIGHT_HEAD,
    STAMP,
    V_HEAD,
    VVEC_HEAD,
    add_lined,
    block_rows,
    dot,
    last_of,
    lined_scores,
    row_number,
    row_of_heads,
    summed,
    summed_projected,
    task_of,
    touch,
    vector_row,
)
from unified_attn.kernels.lanes import (
    MANY,
    TAIL,
    block_count,
    block_width,
    exp,
    finite,
    float_size,
    fma,
    inverse,
    lanes,
    load,
    log,
    maximum,
    peek,
    peek_int32,
    peek_int64,
    poke,
    real,
    record_at,
    splat,
    store,
    take,
    total,
    zero,
)


@lru_cache(None)
def make(form: int, features: int, joint: int, bits: int, q_width: int, q_kind: int, v_width: int, v_kind: int) -> Any:
    """The kernel ``(args, scratch, number)`` for one form and pair of layouts, which does the task of that number.

    ``scratch`` is the address of one plane of scores and 4 numbers a head.
    """
    stamp = STAMP
    scores_of_eight = int(joint and not features and is_eight(bits, q_width, q_kind))
    values_of_eight = int(joint and is_eight(bits, v_width, v_kind))

    @of_integers
    def forward(args, scratch, number):  # type: ignore[no-untyped-def]
        a = record_at(args)
        b, _last_b, first_h, last_h, block, blocks = task_of(args, number)
        like_q = lanes(bits, q_width, q_kind)
        like_v = lanes(bits, v_width, v_kind)
        like_e = lanes(bits, 8, MANY)
        like_f = lanes(bits, 8, features)
        like_t = lanes(bits, 8, TAIL)
        if a.rows + stamp < 0:
            return
        one = float_size(like_e)
        nothing, nil = real(like_e, -np.inf), real(like_e, 0.0)
        scale, cap, slope = real(like_e, a.scale), real(like_e, a.cap), real(like_e, a.slope)
        drop_gain = real(like_e, a.drop_gain)
        num_heads, score_size, value_size = a.num_heads, a.score_size, a.value_size
        k_n, v_n, add_e, kvec_e, vvec_e = a.k_n, a.v_n, a.add_e, a.kvec_e, a.vvec_e
        col, edge, heads = a.col, a.edge, a.heads
        has_kvec, has_vvec, has_drop = a.kvec != 0, a.vvec != 0, a.drop != 0
        late = joint and a.added != 0  # what is added hides nothing, and comes once all scores are there
        has_add = a.add != 0 and not late
        has_kfeat = a.kfeat != 0
        kfeat, kfeat_e, kfeat_size, kweight_f = a.kfeat, a.kfeat_e, a.kfeat_size, a.kweight_f
        vfeat, vfeat_e, vfeat_size = a.vfeat, a.vfeat_e, a.vfeat_size
        pair_counter, drop_from = a.pair_counter != 0, a.drop_from
        keys = a.keys
        side = row_of_heads(last_h - first_h) * one
        t_step, h_step = one, (CHUNK + 8) * one
        if joint:
            t_step, h_step = side, one
        # A number a head: maximum so far, sum so far, what that fades by, and what sums are multiplied by.
        tops = scratch + (CHUNK + 8) * side
        masses, fades, norms = tops + side, tops + 2 * side, tops + 3 * side
        lined = joint and a.lined != 0 and not has_add
        packed_scores = scores_of_eight and a.packed_scores != 0 and not has_add and not has_kvec and cap <= 0
        packed_values = values_of_eight and a.packed_values != 0 and not has_add and not has_vvec
        indptr = a.indptr + b * a.indptr_b
        k_b, v_b = a.k + b * a.k_b, a.v + b * a.v_b
        kcode, vcode = a.kcode + b * a.kcode_b, a.vcode + b * a.vcode_b
        first_table = heads + first_h * (8 * HEAD_FIELDS)
        k_ahead, v_ahead = k_b + peek_int64(first_table + 8 * K_HEAD), v_b + peek_int64(first_table + 8 * V_HEAD)
        ends = a.ends + b * a.indptr_b
        lo, hi = block_rows(indptr, a.rows, a.even, block, blocks)
        last_pair = last_of(ends, lo, hi)
        for i in range(lo, hi):
            begin, end = peek_int64(indptr + 8 * i), peek_int64(ends + 8 * i)
            if end - begin > a.longest:
                take(args + LEFT_OUT)
                continue
            q_i = a.q + b * a.q_b + i * a.q_n
            out_i = a.out + b * a.out_b + i * a.out_n
            lse_i = a.lse + b * a.lse_b + i * a.lse_n
            mixed_i = a.mixed + b * a.mixed_b + i * a.mixed_n
            u_i = a.kquery + b * a.kquery_b + i * a.kquery_n
            if begin == end:
                for h in range(first_h, last_h):
                    poke(like_e, lse_i + h * a.lse_h, nothing)
                    for c in range(block_count(like_v, value_size)):
                        at = c * block_width(like_v)
                        store(out_i + h * a.out_h + at * one, zero(like_v), value_size - at)
                    if features:
                        for c in range(block_count(like_f, vfeat_size)):
                            at = c * block_width(like_f)
                            store(mixed_i + h * a.mixed_h + at * one, zero(like_f), vfeat_size - at)
                continue
            if a.ahead > 0:
                for p in range(min(begin + a.ahead, last_pair), min(end + a.ahead, last_pair)):
                    j = peek_int32(col + 4 * p)
                    touch(k_ahead + j * k_n, a.k_parts, a.k_step, a.k_lines)
                    touch(v_ahead + j * v_n, a.v_parts, a.v_step, a.v_lines)
            for chunk in range(begin, end, CHUNK):
                n = min(CHUNK, end - chunk)
                first, last, pairs = chunk == begin, chunk + n == end, col + 4 * chunk
                # Scores. A hidden pair is left before its key is read.
                if form != DOT and lined:
                    lined_scores(
                        like_e, scratch, t_step, q_i, k_b, k_n, pairs, n, a.att, slope, scale, side,
                        a.kvec, kvec_e, kcode, edge + 4 * chunk,
                    )  # fmt: skip
                elif packed_scores:
                    if form == DOT:
                        packed_dots(like_e, scratch, t_step, q_i, k_b, k_n, pairs, n, scale, side)
                    else:
                        packed_sums(like_e, scratch, t_step, q_i, k_b, k_n, pairs, n, a.att, slope, scale, side)
                else:
                    for h in range(first_h, last_h):
                        table = heads + h * (8 * HEAD_FIELDS)
                        scores = scratch + (h - first_h) * h_step
                        q_h = q_i + h * a.q_h
                        k_h = k_b + peek_int64(table + 8 * K_HEAD)
                        kvec_h = a.kvec + peek_int64(table + 8 * KVEC_HEAD)
                        add_h = a.add + b * a.add_b + h * a.add_h
                        att_h = a.att + h * a.att_h
                        kweight_h = a.kweight + peek_int64(table + 8 * KWEIGHT_HEAD)
                        highest = nothing
                        for t in range(n):
                            p = chunk + t
                            j = peek_int32(col + 4 * p)
                            extra, f_e = 0, 0
                            shift = real(like_e, 0.0)
                            if has_add or has_kvec or has_kfeat:
                                e = peek_int32(edge + 4 * p)
                                if has_add:
                                    shift = peek(like_e, add_h + e * add_e)
                                    if shift == nothing:
                                        poke(like_e, scores + t * t_step, nothing)
                                        continue
                                if has_kvec:
                                    extra = kvec_h + vector_row(kcode, e) * kvec_e
                                f_e = kfeat + e * kfeat_e
                            if form == DOT:
                                s = dot(like_q, q_h, k_h + j * k_n, extra, score_size)
                                if features:
                                    s = s + dot(like_f, u_i + h * a.kquery_h, f_e, 0, kfeat_size)
                                s = s * scale
                                if cap > 0:
                                    s = cap * real(like_e, np.tanh(s / cap))
                            elif features:
                                k_j = k_h + j * k_n
                                s = summed_projected(
                                    like_q, q_h, k_j, extra, f_e, kweight_h, kweight_f, kfeat_size, att_h, slope,
                                    score_size,
                                )  # fmt: skip
                                s = s * scale
                            else:
                                s = summed(like_q, q_h, k_h + j * k_n, extra, att_h, slope, score_size) * scale
                            s = s + shift
                            poke(like_e, scores + t * t_step, s)
                            if not joint:
                                highest = max(highest, s) if s == s else highest
                        if not joint:
                            poke(like_e, norms + (h - first_h) * one, highest)  # which is not needed yet
                if late:
                    add_b = a.add + b * a.add_b + first_h * a.add_h
                    add_lined(like_t, scratch, t_step, add_b, add_e, a.add_h, edge + 4 * chunk, n, last_h - first_h)
                # Exponentials, from the largest score down; 0 in its place where there is none.
                if joint:
                    for to in range(0, side, 8 * one):
                        before = splat(like_e, nothing)
                        if not first:
                            before = load(like_e, tops + to, 8)
                        top = before
                        for t in range(n):
                            top = maximum(top, load(like_e, scratch + t * t_step + to, 8))
                        base, mass = finite(top), zero(like_e)
                        for t in range(n):
                            x = exp(load(like_e, scratch + t * t_step + to, 8) - base)
                            store(scratch + t * t_step + to, x, 8)
                            mass = mass + x
                        if not first:
                            fade = exp(before - base)
                            store(fades + to, fade, 8)
                            mass = fma(fade, load(like_e, masses + to, 8), mass)
                        store(tops + to, top, 8)
                        store(masses + to, mass, 8)
                        if last:
                            store(norms + to, inverse(mass), 8)
                            store(tops + to, base + log(mass), 8)
                    if last and a.lse_h == one and (last_h - first_h) * one == side:
                        for to in range(0, side, 8 * one):
                            store(lse_i + to, load(like_e, tops + to, 8), 8)
                    elif last:
                        for h in range(first_h, last_h):
                            poke(like_e, lse_i + h * a.lse_h, peek(like_e, tops + (h - first_h) * one))
                else:
                    for h in range(last_h - first_h):
                        scores = scratch + h * h_step
                        store(scores + n * one, splat(like_e, nothing), 8)
                        before, highest = nothing, peek(like_e, norms + h * one)
                        if not first:
                            before = peek(like_e, tops + h * one)
                            highest = max(highest, before)
                        base = highest if highest > nothing else real(like_e, 0.0)
                        acc_e = zero(like_e)
                        for t in range(0, n, 8):
                            x = exp(load(like_e, scores + t * one, 8) - splat(like_e, base))
                            store(scores + t * one, x, 8)
                            acc_e = acc_e + x
                        sum_e = total(acc_e)
                        if not first:
                            fading = real(like_e, np.exp(before - base))
                            poke(like_e, fades + h * one, fading)
                            sum_e = sum_e + fading * peek(like_e, masses + h * one)
                        poke(like_e, tops + h * one, highest)
                        poke(like_e, masses + h * one, sum_e)
                        if last:
                            norm, lse = real(like_e, 1.0), nothing
                            if sum_e != 0:
                                norm, lse = norm / sum_e, base + real(like_e, np.log(sum_e))
                            poke(like_e, norms + h * one, norm)
                            poke(like_e, lse_i + (first_h + h) * a.lse_h, lse)
                if has_drop:
                    for t in range(n):
                        counter = peek_int32(edge + 4 * (chunk + t))
                        if pair_counter:
                            counter = row_number(a.row, i) * keys + peek_int32(col + 4 * (chunk + t))
                        x = counted(a.seed, b * num_heads + first_h, counter)
                        if joint:
                            for to in range(scratch + t * t_step, scratch + t * t_step + side, 8 * one):
                                store(to, load(like_e, to, 8) * gains(splat(like_e, drop_gain), x, drop_from), 8)
                                x += 8 * HEAD_STEP
                        else:
                            for to in range(scratch + t * one, scratch + t * one + (last_h - first_h) * h_step, h_step):
                                w = peek(like_e, to) * drop_gain  # in any case: no branch to guess
                                poke(like_e, to, w if kept(x, drop_from) else nil)
                                x += HEAD_STEP
                # The sum of this chunk's values begins at 0, so that long rows are summed in two levels.
                if packed_values:
                    fade_by, norm_by = 0 if first else fades, norms if last else 0
                    packed_mix(like_e, out_i, scratch, t_step, v_b, v_n, pairs, n, fade_by, norm_by, side)
                    if not features:
                        continue
                for h in range(first_h, last_h):
                    table = heads + h * (8 * HEAD_FIELDS)
                    scores = scratch + (h - first_h) * h_step
                    v_h = v_b + peek_int64(table + 8 * V_HEAD)
                    vvec_h = a.vvec + peek_int64(table + 8 * VVEC_HEAD)
                    norm, fading = real(like_e, 1.0), real(like_e, 0.0)
                    if last:
                        norm = peek(like_e, norms + (h - first_h) * one)
                    if not first:
                        fading = peek(like_e, fades + (h - first_h) * one)
                    for c in range(0 if packed_values else block_count(like_v, value_size)):
                        at = c * block_width(like_v) * one
                        left = value_size - c * block_width(like_v)
                        acc = zero(like_v)
                        if has_vvec:
                            for t in range(n):
                                w = peek(like_e, scores + t * t_step)
                                if has_add and w == 0:
                                    continue
                                j = peek_int32(col + 4 * (chunk + t))
                                e = peek_int32(edge + 4 * (chunk + t))
                                x = load(like_v, v_h + j * v_n + at, left)
                                x = x + load(like_v, vvec_h + vector_row(vcode, e) * vvec_e + at, left)
                                acc = fma(splat(like_v, w), x, acc)
                        elif has_add:
                            for t in range(n):
                                w = peek(like_e, scores + t * t_step)
                                if w == 0:
                                    continue
                                j = peek_int32(col + 4 * (chunk + t))
                                acc = fma(splat(like_v, w), load(like_v, v_h + j * v_n + at, left), acc)
                        else:
                            for t in range(n):
                                w = peek(like_e, scores + t * t_step)
                                j = peek_int32(col + 4 * (chunk + t))
                                acc = fma(splat(like_v, w), load(like_v, v_h + j * v_n + at, left), acc)
                        target = out_i + h * a.out_h + at
                        if not first:
                            acc = fma(splat(like_v, fading), load(like_v, target, left), acc)
                        store(target, acc * splat(like_v, norm), left)
                    if features:
                        for c in range(block_count(like_f, vfeat_size)):
                            at = c * block_width(like_f) * one
                            left = vfeat_size - c * block_width(like_f)
                            acc = zero(like_f)
                            for t in range(n):
                                w = peek(like_e, scores + t * t_step)
                                if has_add and w == 0:
                                    continue
                                e = peek_int32(edge + 4 * (chunk + t))
                                acc = fma(splat(like_f, w), load(like_f, vfeat + e * vfeat_e + at, left), acc)
                            target = mixed_i + h * a.mixed_h + at
                            if not first:
                                acc = fma(splat(like_f, fading), load(like_f, target, left), acc)
                            store(target, acc * splat(like_f, norm), left)

    return forward
