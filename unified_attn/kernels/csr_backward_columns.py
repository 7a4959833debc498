"""The backward kernel over columns: gradients of keys and values.

The rows of the transpose are keys, so that each key's gradient is summed by one task, without atomics. A pair's weight
and slope are computed again: that costs less than an edge-sized tensor, since the query and the output's gradient have
to be read for the sums anyway.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from unified_attn._compiling import of_integers
from unified_attn.dropout import HEAD_STEP
from unified_attn.kernels.csr_args import CHUNK, LEFT_OUT
from unified_attn.kernels.csr_dropout import counted, gains, kept
from unified_attn.kernels.csr_packed import is_eight, packed_dots, packed_mix, packed_pulls, packed_stats, packed_sums
from unified_attn.kernels.csr_pair import (
    DK_HEAD,
    DOT,
    DV_HEAD,
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
    lined_key,
    lined_scores,
    projected,
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
    float_size,
    fma,
    lanes,
    leaky_gain,
    load,
    peek,
    peek_int32,
    peek_int64,
    poke,
    prefetch,
    real,
    record_at,
    splat,
    store,
    take,
    zero,
)


@lru_cache(None)
def make(form: int, features: int, joint: int, bits: int, q_width: int, q_kind: int, v_width: int, v_kind: int) -> Any:
    """The kernel ``(args, scratch, number)``, which does the task of that number; ``scratch``: four planes.

    In ``args``, indptr, col, edge and rows are those of the transpose, and the k and v parts to prefetch those of the
    queries and of the output's gradient. ``stats`` holds (lse, delta) of each query.
    """
    stamp = STAMP
    scores_of_eight = int(joint and not features and is_eight(bits, q_width, q_kind))
    values_of_eight = int(joint and not features and is_eight(bits, v_width, v_kind))

    @of_integers
    def backward_columns(args, scratch, number):  # type: ignore[no-untyped-def]
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
        q_n, g_n, stats_n, add_e, kvec_e, vvec_e = a.q_n, a.g_out_n, a.stats_n, a.add_e, a.kvec_e, a.vvec_e
        col, edge, heads = a.col, a.edge, a.heads
        has_kvec, has_vvec, has_drop = a.kvec != 0, a.vvec != 0, a.drop != 0
        late = joint and a.added != 0  # what is added hides nothing, and comes once all scores are there
        has_add = a.add != 0 and not late
        kfeat, kfeat_e, kfeat_size, kweight_f = a.kfeat, a.kfeat_e, a.kfeat_size, a.kweight_f
        vfeat, vfeat_e, vfeat_size = a.vfeat, a.vfeat_e, a.vfeat_size
        pair_counter, drop_from = a.pair_counter != 0, a.drop_from
        need_dk, need_dv, keys = a.dk != 0, a.dv != 0, a.keys
        side = row_of_heads(last_h - first_h) * one
        t_step, h_step = one, (CHUNK + 8) * one
        if joint:
            t_step, h_step = side, one
        plane = (CHUNK + 8) * side
        slopes, deltas, capped = scratch + plane, scratch + 2 * plane, scratch + 3 * plane  # slopes: <g, v>, then ds
        lined = joint and a.lined != 0 and not has_add and not has_vvec and not features
        packed = values_of_eight and a.packed_values != 0 and not has_add and not has_vvec and cap <= 0
        packed_scores = packed and scores_of_eight and a.packed_scores != 0 and not has_kvec
        packed = packed and (packed_scores or lined)
        ones = scratch + 4 * plane
        if values_of_eight:
            for to in range(0, side, 8 * one):
                store(ones + to, splat(like_e, real(like_e, 1.0)), 8)
        indptr = a.indptr + b * a.indptr_b
        kcode, vcode = a.kcode + b * a.kcode_b, a.vcode + b * a.vcode_b
        u_b, gm_b = a.kquery + b * a.kquery_b, a.g_mixed + b * a.g_mixed_b
        q_b, g_b, stats_b = a.q + b * a.q_b, a.g_out + b * a.g_out_b, a.stats + b * a.stats_b
        ends = a.ends + b * a.indptr_b
        lo, hi = block_rows(indptr, a.rows, a.even, block, blocks)
        last_pair = last_of(ends, lo, hi)
        for j in range(lo, hi):
            begin, end = peek_int64(indptr + 8 * j), peek_int64(ends + 8 * j)
            if end - begin > a.longest:
                take(args + LEFT_OUT)
                continue
            for h in range(first_h, last_h):  # heads of one group clear the same key several times, which is harmless
                table = heads + h * (8 * HEAD_FIELDS)
                if need_dk:
                    to = a.dk + b * a.dk_b + j * a.dk_n + peek_int64(table + 8 * DK_HEAD)
                    for c in range(block_count(like_q, score_size)):
                        at = c * block_width(like_q)
                        store(to + at * one, zero(like_q), score_size - at)
                if need_dv:
                    to = a.dv + b * a.dv_b + j * a.dv_n + peek_int64(table + 8 * DV_HEAD)
                    for c in range(block_count(like_v, value_size)):
                        at = c * block_width(like_v)
                        store(to + at * one, zero(like_v), value_size - at)
            if a.ahead > 0:
                for p in range(min(begin + a.ahead, last_pair), min(end + a.ahead, last_pair)):
                    i = peek_int32(col + 4 * p)
                    touch(q_b + first_h * a.q_h + i * q_n, a.k_parts, a.k_step, a.k_lines)
                    touch(g_b + first_h * a.g_out_h + i * g_n, a.v_parts, a.v_step, a.v_lines)
                    prefetch(stats_b + first_h * a.stats_h + i * stats_n)
            for chunk in range(begin, end, CHUNK):
                n, pairs, k_j = min(CHUNK, end - chunk), col + 4 * chunk, a.k + b * a.k_b + j * a.k_n
                if form != DOT and lined:
                    lined_scores(
                        like_e, scratch, t_step, k_j, q_b, q_n, pairs, n, a.att, slope, scale, side,
                        a.kvec, kvec_e, kcode, edge + 4 * chunk,
                    )  # fmt: skip
                if packed_scores:
                    if form == DOT:
                        packed_dots(like_e, scratch, t_step, k_j, q_b, q_n, pairs, n, scale, side)
                    else:
                        packed_sums(like_e, scratch, t_step, k_j, q_b, q_n, pairs, n, a.att, slope, scale, side)
                if packed:
                    packed_stats(like_e, scratch, deltas, t_step, stats_b, stats_n, pairs, n, side)
                    if need_dk:
                        v_j = a.v + b * a.v_b + j * a.v_n
                        packed_dots(like_e, slopes, t_step, v_j, g_b, g_n, pairs, n, real(like_e, 1.0), side)
                for h in range(first_h, first_h if packed else last_h):
                    table = heads + h * (8 * HEAD_FIELDS)
                    weights_h, slopes_h = scratch + (h - first_h) * h_step, slopes + (h - first_h) * h_step
                    deltas_h = deltas + (h - first_h) * h_step
                    v_j = a.v + b * a.v_b + j * a.v_n + peek_int64(table + 8 * V_HEAD)
                    g_h, stats_h = g_b + h * a.g_out_h, stats_b + h * a.stats_h
                    if form != DOT and lined:
                        for t in range(n):
                            i = peek_int32(col + 4 * (chunk + t))
                            to, stats = weights_h + t * t_step, stats_h + i * stats_n
                            poke(like_e, to, peek(like_e, to) - peek(like_e, stats))
                            if need_dk:
                                poke(like_e, slopes_h + t * t_step, dot(like_v, g_h + i * g_n, v_j, 0, value_size))
                                poke(like_e, deltas_h + t * t_step, peek(like_e, stats + one))
                        continue
                    k_j = a.k + b * a.k_b + j * a.k_n + peek_int64(table + 8 * K_HEAD)
                    q_h = q_b + h * a.q_h
                    kvec_h = a.kvec + peek_int64(table + 8 * KVEC_HEAD)
                    vvec_h = a.vvec + peek_int64(table + 8 * VVEC_HEAD)
                    add_h = a.add + b * a.add_b + h * a.add_h
                    att_h = a.att + h * a.att_h
                    kweight_h = a.kweight + peek_int64(table + 8 * KWEIGHT_HEAD)
                    u_h, gm_h = u_b + h * a.kquery_h, gm_b + h * a.g_mixed_h
                    for t in range(n):
                        p = chunk + t
                        i = peek_int32(col + 4 * p)
                        e = peek_int32(edge + 4 * p)
                        shift = nil
                        if has_add:
                            shift = peek(like_e, add_h + e * add_e)
                            if shift == nothing:
                                poke(like_e, weights_h + t * t_step, nothing)
                                poke(like_e, slopes_h + t * t_step, nil)
                                poke(like_e, deltas_h + t * t_step, nil)
                                continue
                        kvec, vvec = 0, 0
                        if has_kvec:
                            kvec = kvec_h + vector_row(kcode, e) * kvec_e
                        if has_vvec:
                            vvec = vvec_h + vector_row(vcode, e) * vvec_e
                        if form == DOT:
                            s = dot(like_q, q_h + i * q_n, k_j, kvec, score_size)
                            if features:
                                s = s + dot(like_f, u_h + i * a.kquery_n, kfeat + e * kfeat_e, 0, kfeat_size)
                            s = s * scale
                            if cap > 0:
                                s = cap * real(like_e, np.tanh(s / cap))
                                poke(like_e, capped + (h - first_h) * h_step + t * t_step, s)
                        elif features:
                            q_i, f_e = q_h + i * q_n, kfeat + e * kfeat_e
                            s = summed_projected(
                                like_q, q_i, k_j, kvec, f_e, kweight_h, kweight_f, kfeat_size, att_h, slope, score_size
                            )
                            s = s * scale
                        else:
                            s = summed(like_q, q_h + i * q_n, k_j, kvec, att_h, slope, score_size) * scale
                        stats = stats_h + i * stats_n
                        poke(like_e, weights_h + t * t_step, s + shift - peek(like_e, stats))
                        if need_dk:
                            gv = dot(like_v, g_h + i * g_n, v_j, vvec, value_size)
                            if features and a.g_mixed != 0:
                                gv = gv + dot(like_f, gm_h + i * a.g_mixed_n, vfeat + e * vfeat_e, 0, vfeat_size)
                            poke(like_e, slopes_h + t * t_step, gv)
                            poke(like_e, deltas_h + t * t_step, peek(like_e, stats + one))
                if late:
                    add_b = a.add + b * a.add_b + first_h * a.add_h
                    add_lined(like_t, scratch, t_step, add_b, add_e, a.add_h, edge + 4 * chunk, n, last_h - first_h)
                # Weights, and the slopes of the form.
                simple = cap <= 0 and (joint or not has_drop)
                if joint:
                    for t in range(n):
                        x = 0
                        if has_drop:
                            counter = peek_int32(edge + 4 * (chunk + t))
                            if pair_counter:
                                counter = peek_int32(col + 4 * (chunk + t)) * keys + row_number(a.row, j)
                            x = counted(a.seed, b * num_heads + first_h, counter)
                        for to in range(t * t_step, t * t_step + side, 8 * one):
                            w, gain = exp(load(like_e, scratch + to, 8)), splat(like_e, real(like_e, 1.0))
                            if simple:
                                if has_drop:
                                    gain = gains(splat(like_e, drop_gain), x, drop_from)
                                    x += 8 * HEAD_STEP
                                if need_dk:
                                    ds = w * (load(like_e, slopes + to, 8) * gain - load(like_e, deltas + to, 8))
                                    store(slopes + to, ds * splat(like_e, scale), 8)
                            store(scratch + to, w * gain, 8)
                else:
                    for h in range(last_h - first_h):
                        weights_h, slopes_h, deltas_h = scratch + h * h_step, slopes + h * h_step, deltas + h * h_step
                        store(weights_h + n * one, splat(like_e, nothing), 8)
                        for t in range(0, n, 8):
                            to = t * one
                            w = exp(load(like_e, weights_h + to, 8))
                            store(weights_h + to, w, 8)
                            if need_dk and simple:
                                ds = w * (load(like_e, slopes_h + to, 8) - load(like_e, deltas_h + to, 8))
                                store(slopes_h + to, ds * splat(like_e, scale), 8)
                if not simple:
                    for h in range(first_h, last_h):
                        at_h = (h - first_h) * h_step
                        for t in range(n):
                            at = at_h + t * t_step
                            w = peek(like_e, scratch + at)
                            gain = real(like_e, 1.0)
                            if has_drop:
                                counter = peek_int32(edge + 4 * (chunk + t))
                                if pair_counter:
                                    counter = peek_int32(col + 4 * (chunk + t)) * keys + row_number(a.row, j)
                                x = counted(a.seed, b * num_heads + h, counter)
                                gain = drop_gain if kept(x, drop_from) else nil
                                poke(like_e, scratch + at, w * gain)
                            if need_dk:
                                ds = w * (gain * peek(like_e, slopes + at) - peek(like_e, deltas + at)) * scale
                                if cap > 0 and w != 0:
                                    ratio = peek(like_e, capped + at) / cap
                                    ds = ds * (real(like_e, 1.0) - ratio * ratio)
                                poke(like_e, slopes + at, ds)
                if form != DOT and lined and need_dk:
                    k_j, dk_j = a.k + b * a.k_b + j * a.k_n, a.dk + b * a.dk_b + j * a.dk_n
                    for to in range(0, side, 8 * one):
                        own, acc_e = load(like_e, k_j + to, 8), zero(like_e)
                        for t in range(n):
                            edges = edge + 4 * chunk
                            z_e = own + lined_key(like_e, q_b, q_n, pairs, t, a.kvec, kvec_e, kcode, edges, to)
                            acc_e = fma(load(like_e, slopes + t * t_step + to, 8), leaky_gain(z_e, slope), acc_e)
                        store(dk_j + to, fma(acc_e, load(like_e, a.att + to, 8), load(like_e, dk_j + to, 8)), 8)
                fade_by = 0 if chunk == begin else ones
                if form == DOT and packed_scores and need_dk:
                    dk_j = a.dk + b * a.dk_b + j * a.dk_n
                    packed_mix(like_e, dk_j, slopes, t_step, q_b, q_n, pairs, n, fade_by, 0, side)
                if form != DOT and packed_scores and need_dk:
                    k_j, dk_j = a.k + b * a.k_b + j * a.k_n, a.dk + b * a.dk_b + j * a.dk_n
                    packed_pulls(like_e, dk_j, slopes, t_step, k_j, q_b, q_n, pairs, n, a.att, slope, side)
                if packed and need_dv:
                    # Both are added to one tensor where keys are values.
                    dv_j = a.dv + b * a.dv_b + j * a.dv_n
                    fade_by = ones if a.dv == a.dk else fade_by
                    packed_mix(like_e, dv_j, scratch, t_step, g_b, g_n, pairs, n, fade_by, 0, side)
                    continue
                for h in range(first_h, last_h):
                    table = heads + h * (8 * HEAD_FIELDS)
                    weights_h, slopes_h = scratch + (h - first_h) * h_step, slopes + (h - first_h) * h_step
                    g_h = g_b + h * a.g_out_h
                    if need_dk and not (form != DOT and lined) and not packed_scores:
                        k_j = a.k + b * a.k_b + j * a.k_n + peek_int64(table + 8 * K_HEAD)
                        q_h = q_b + h * a.q_h
                        kvec_h = a.kvec + peek_int64(table + 8 * KVEC_HEAD)
                        att_h = a.att + h * a.att_h
                        kweight_h = a.kweight + peek_int64(table + 8 * KWEIGHT_HEAD)
                        dk_j = a.dk + b * a.dk_b + j * a.dk_n + peek_int64(table + 8 * DK_HEAD)
                        for c in range(block_count(like_q, score_size)):
                            at = c * block_width(like_q) * one
                            left = score_size - c * block_width(like_q)
                            acc = zero(like_q)
                            k_c = load(like_q, k_j + at, left)
                            for t in range(n):
                                ds = peek(like_e, slopes_h + t * t_step)
                                if has_add and ds == 0:
                                    continue
                                i = peek_int32(col + 4 * (chunk + t))
                                x = load(like_q, q_h + i * q_n + at, left)
                                if form == DOT:
                                    acc = fma(splat(like_q, ds), x, acc)
                                else:
                                    z = x + k_c
                                    if has_kvec:
                                        e = peek_int32(edge + 4 * (chunk + t))
                                        z = z + load(like_q, kvec_h + vector_row(kcode, e) * kvec_e + at, left)
                                    if features:
                                        f_e = kfeat + peek_int32(edge + 4 * (chunk + t)) * kfeat_e
                                        z = z + projected(like_q, f_e, kweight_h + at, kweight_f, kfeat_size, left)
                                    acc = fma(splat(like_q, ds), leaky_gain(z, slope), acc)
                            if form != DOT:
                                acc = acc * load(like_q, att_h + at, left)
                            store(dk_j + at, load(like_q, dk_j + at, left) + acc, left)
                    if need_dv and not packed:
                        dv_j = a.dv + b * a.dv_b + j * a.dv_n + peek_int64(table + 8 * DV_HEAD)
                        for c in range(block_count(like_v, value_size)):
                            at = c * block_width(like_v) * one
                            left = value_size - c * block_width(like_v)
                            acc = zero(like_v)
                            for t in range(n):
                                w = peek(like_e, weights_h + t * t_step)
                                if has_add and w == 0:
                                    continue
                                i = peek_int32(col + 4 * (chunk + t))
                                acc = fma(splat(like_v, w), load(like_v, g_h + i * g_n + at, left), acc)
                            store(dv_j + at, load(like_v, dv_j + at, left) + acc, left)

    return backward_columns
