"""The backward kernel over rows: gradients of queries, of what belongs to a pair, and of att.

With p_e the weight, m_e the dropout factor and g = dout_i,

    delta_i = <g, out_i> - dlse_i
    ds_e    = p_e * (m_e <g, v_e> - delta_i)          the gradient of the logit, and of add
    dq_i    = sum_e ds_e * d score_e / d q_i

Scores are computed again from the saved log-sum-exp. A pair belongs to one row, and the batch is looped over inside a
block of rows, so nothing is written by two tasks.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from unified_attn._compiling import of_integers
from unified_attn.kernels.csr_args import CHUNK, LEFT_OUT
from unified_attn.kernels.csr_dropout import counted, gains, kept
from unified_attn.kernels.csr_packed import (
    is_eight,
    packed_att,
    packed_deltas,
    packed_dots,
    packed_mix,
    packed_pulls,
    packed_sums,
)
from unified_attn.kernels.csr_pair import (
    DKVEC_HEAD,
    DKWEIGHT_HEAD,
    DOT,
    DVVEC_HEAD,
    HEAD_FIELDS,
    K_HEAD,
    KVEC_HEAD,
    KWEIGHT_HEAD,
    STAMP,
    V_HEAD,
    VVEC_HEAD,
    add_lined,
    add_projected,
    add_scaled,
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
    leaky,
    leaky_gain,
    load,
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
    """The kernel ``(args, scratch, number)``, which does the task of that number.

    ``scratch`` is the address of three planes and 3 numbers a head.
    """
    stamp = STAMP
    scores_of_eight = int(joint and not features and is_eight(bits, q_width, q_kind))
    values_of_eight = int(joint and not features and is_eight(bits, v_width, v_kind))

    @of_integers
    def backward_rows(args, scratch, number):  # type: ignore[no-untyped-def]
        a = record_at(args)
        first_b, last_b, first_h, last_h, block, blocks = task_of(args, number)
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
        kfeat, kfeat_e, kfeat_size, kweight_f = a.kfeat, a.kfeat_e, a.kfeat_size, a.kweight_f
        vfeat, vfeat_e, vfeat_size = a.vfeat, a.vfeat_e, a.vfeat_size
        pair_counter, drop_from = a.pair_counter != 0, a.drop_from
        need_dq, need_dadd, need_dkvec = a.dq != 0, a.dadd != 0, a.dkvec != 0
        need_dvvec, need_datt = a.dvvec != 0, a.datt != 0
        need_dkfeat, need_dkquery, need_dkweight = a.dkfeat != 0, a.dkquery != 0, a.dkweight != 0
        need_dvfeat = a.dvfeat != 0
        need_projected = need_dkweight or (need_dkfeat and form != DOT)
        keys, dadd_e, dkvec_e, dvvec_e = a.keys, a.dadd_e, a.dkvec_e, a.dvvec_e
        side = row_of_heads(last_h - first_h) * one
        t_step, h_step = one, (CHUNK + 8) * one
        if joint:
            t_step, h_step = side, one
        plane = (CHUNK + 8) * side
        slopes, capped = scratch + plane, scratch + 2 * plane  # slopes: <g, v>, then ds
        # A number a head: lse (0 where nothing is visible), delta, and 1.
        lses = scratch + 3 * plane
        deltas = lses + side
        ones = deltas + side
        for to in range(0, side, 8 * one):
            store(ones + to, splat(like_e, real(like_e, 1.0)), 8)
        lined = joint and a.lined != 0 and not has_add
        late_dadd = late and need_dadd and (a.dadd_h == one or a.dadd_h == 0)
        packed = values_of_eight and a.packed_values != 0 and not has_add and not has_vvec and cap <= 0
        packed = packed and (late_dadd or not need_dadd)
        packed_scores = packed and scores_of_eight and a.packed_scores != 0 and not has_kvec
        packed = packed and (packed_scores or lined)
        wanted = need_dq or need_dadd or need_dkvec or need_dvvec or need_datt
        wanted = wanted or need_dkfeat or need_dkquery or need_dkweight or need_dvfeat
        ahead = a.ahead if wanted else 0
        for b in range(first_b, last_b):
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
                dq_i = a.dq + b * a.dq_b + i * a.dq_n
                g_i = a.g_out + b * a.g_out_b + i * a.g_out_n
                u_i = a.kquery + b * a.kquery_b + i * a.kquery_n
                du_i = a.dkquery + b * a.dkquery_b + i * a.dkquery_n
                gm_i = a.g_mixed + b * a.g_mixed_b + i * a.g_mixed_n
                if need_dq:
                    for h in range(first_h, last_h):
                        for c in range(block_count(like_q, score_size)):
                            at = c * block_width(like_q)
                            store(dq_i + h * a.dq_h + at * one, zero(like_q), score_size - at)
                if features and need_dkquery:
                    for h in range(first_h, last_h):
                        for c in range(block_count(like_f, kfeat_size)):
                            at = c * block_width(like_f)
                            store(du_i + h * a.dkquery_h + at * one, zero(like_f), kfeat_size - at)
                if begin == end:
                    continue
                if ahead > 0:
                    for p in range(min(begin + ahead, last_pair), min(end + ahead, last_pair)):
                        j = peek_int32(col + 4 * p)
                        touch(k_ahead + j * k_n, a.k_parts, a.k_step, a.k_lines)
                        touch(v_ahead + j * v_n, a.v_parts, a.v_step, a.v_lines)
                stats_i = a.stats + b * a.stats_b + i * a.stats_n
                known = packed and a.lse_h == one and a.g_lse == 0
                if known:
                    out_i = a.out + b * a.out_b + i * a.out_n
                    lse_i = a.lse + b * a.lse_b + i * a.lse_n
                    packed_deltas(like_e, lses, deltas, stats_i, lse_i, g_i, out_i, side)
                for h in range(first_h, first_h if known else last_h):
                    out_h = a.out + b * a.out_b + i * a.out_n + h * a.out_h
                    delta = dot(like_v, g_i + h * a.g_out_h, out_h, 0, value_size)
                    if features and a.g_mixed != 0:
                        mixed_h = a.mixed + b * a.mixed_b + i * a.mixed_n + h * a.mixed_h
                        delta = delta + dot(like_f, gm_i + h * a.g_mixed_h, mixed_h, 0, vfeat_size)
                    if a.g_lse != 0:
                        delta = delta - peek(like_e, a.g_lse + b * a.g_lse_b + h * a.g_lse_h + i * a.g_lse_n)
                    lse = peek(like_e, a.lse + b * a.lse_b + h * a.lse_h + i * a.lse_n)
                    poke(like_e, stats_i + h * a.stats_h, lse)
                    poke(like_e, stats_i + h * a.stats_h + one, delta)
                    poke(like_e, lses + (h - first_h) * one, nil if lse == nothing else lse)
                    poke(like_e, deltas + (h - first_h) * one, delta)
                if not wanted:
                    continue
                for chunk in range(begin, end, CHUNK):
                    n, pairs = min(CHUNK, end - chunk), col + 4 * chunk
                    if form != DOT and lined:
                        lined_scores(
                            like_e, scratch, t_step, q_i, k_b, k_n, pairs, n, a.att, slope, scale, side,
                            a.kvec, kvec_e, kcode, edge + 4 * chunk,
                        )  # fmt: skip
                    if packed:
                        packed_dots(like_e, slopes, t_step, g_i, v_b, v_n, pairs, n, real(like_e, 1.0), side)
                    if packed_scores:
                        if form == DOT:
                            packed_dots(like_e, scratch, t_step, q_i, k_b, k_n, pairs, n, scale, side)
                        else:
                            packed_sums(like_e, scratch, t_step, q_i, k_b, k_n, pairs, n, a.att, slope, scale, side)
                    for h in range(first_h, first_h if packed else last_h):
                        table = heads + h * (8 * HEAD_FIELDS)
                        weights_h, slopes_h = scratch + (h - first_h) * h_step, slopes + (h - first_h) * h_step
                        g_h = g_i + h * a.g_out_h
                        v_h = v_b + peek_int64(table + 8 * V_HEAD)
                        if form != DOT and lined and not has_vvec and not features:
                            for t in range(n):
                                j = peek_int32(col + 4 * (chunk + t))
                                poke(like_e, slopes_h + t * t_step, dot(like_v, g_h, v_h + j * v_n, 0, value_size))
                            continue
                        q_h = q_i + h * a.q_h
                        k_h = k_b + peek_int64(table + 8 * K_HEAD)
                        kvec_h = a.kvec + peek_int64(table + 8 * KVEC_HEAD)
                        vvec_h = a.vvec + peek_int64(table + 8 * VVEC_HEAD)
                        add_h = a.add + b * a.add_b + h * a.add_h
                        att_h = a.att + h * a.att_h
                        kweight_h = a.kweight + peek_int64(table + 8 * KWEIGHT_HEAD)
                        u_h, gm_h = u_i + h * a.kquery_h, gm_i + h * a.g_mixed_h
                        for t in range(n):
                            p = chunk + t
                            j = peek_int32(col + 4 * p)
                            e = peek_int32(edge + 4 * p)
                            shift = nil
                            if has_add:
                                shift = peek(like_e, add_h + e * add_e)
                                if shift == nothing:
                                    poke(like_e, weights_h + t * t_step, nothing)
                                    poke(like_e, slopes_h + t * t_step, nil)
                                    continue
                            kvec, vvec = 0, 0
                            if has_kvec:
                                kvec = kvec_h + vector_row(kcode, e) * kvec_e
                            if has_vvec:
                                vvec = vvec_h + vector_row(vcode, e) * vvec_e
                            if form == DOT:
                                s = dot(like_q, q_h, k_h + j * k_n, kvec, score_size)
                                if features:
                                    s = s + dot(like_f, u_h, kfeat + e * kfeat_e, 0, kfeat_size)
                                s = s * scale
                                if cap > 0:
                                    s = cap * real(like_e, np.tanh(s / cap))
                                    poke(like_e, capped + (h - first_h) * h_step + t * t_step, s)
                            elif features:
                                k_j, f_e = k_h + j * k_n, kfeat + e * kfeat_e
                                s = summed_projected(
                                    like_q, q_h, k_j, kvec, f_e, kweight_h, kweight_f, kfeat_size, att_h, slope,
                                    score_size,
                                )  # fmt: skip
                                s = s * scale
                            else:
                                s = summed(like_q, q_h, k_h + j * k_n, kvec, att_h, slope, score_size) * scale
                            poke(like_e, weights_h + t * t_step, s + shift)
                            gv = dot(like_v, g_h, v_h + j * v_n, vvec, value_size)
                            if features and a.g_mixed != 0:
                                gv = gv + dot(like_f, gm_h, vfeat + e * vfeat_e, 0, vfeat_size)
                            poke(like_e, slopes_h + t * t_step, gv)
                    if late:
                        add_b = a.add + b * a.add_b + first_h * a.add_h
                        add_lined(like_t, scratch, t_step, add_b, add_e, a.add_h, edge + 4 * chunk, n, last_h - first_h)
                    # Weights, and the slopes of the logits.
                    if joint:
                        for to in range(0, side, 8 * one):
                            lse_e, delta_e = load(like_e, lses + to, 8), load(like_e, deltas + to, 8)
                            for t in range(n):
                                at = t * t_step + to
                                w, gv = exp(load(like_e, scratch + at, 8) - lse_e), load(like_e, slopes + at, 8)
                                if has_drop:
                                    counter = peek_int32(edge + 4 * (chunk + t))
                                    if pair_counter:
                                        counter = row_number(a.row, i) * keys + peek_int32(col + 4 * (chunk + t))
                                    x = counted(a.seed, b * num_heads + first_h + to // one, counter)
                                    gain = gains(splat(like_e, drop_gain), x, drop_from)
                                    store(scratch + at, w * gain, 8)
                                    gv = gv * gain
                                else:
                                    store(scratch + at, w, 8)
                                store(slopes + at, w * (gv - delta_e), 8)
                    else:
                        for h in range(last_h - first_h):
                            weights_h, slopes_h = scratch + h * h_step, slopes + h * h_step
                            lse_e = splat(like_e, peek(like_e, lses + h * one))
                            delta_e = splat(like_e, peek(like_e, deltas + h * one))
                            store(weights_h + n * one, splat(like_e, nothing), 8)
                            store(slopes_h + n * one, zero(like_e), 8)
                            for t in range(0, n, 8):
                                at = t * one
                                w = exp(load(like_e, weights_h + at, 8) - lse_e)
                                store(weights_h + at, w, 8)
                                if not has_drop:
                                    store(slopes_h + at, w * (load(like_e, slopes_h + at, 8) - delta_e), 8)
                    if late_dadd:
                        dadd_b = a.dadd + b * a.dadd_b + first_h * a.dadd_h
                        for t in range(n):
                            to, ds = dadd_b + peek_int32(edge + 4 * (chunk + t)) * dadd_e, slopes + t * t_step
                            for h in range(0, last_h - first_h, 8):
                                at, left = h * one, last_h - first_h - h
                                grad = load(like_t, ds + at, left)
                                if a.dadd_h == 0:
                                    poke(like_e, to, peek(like_e, to) + total(grad))
                                elif b > 0 or a.shared == 0 or dadd_e == 0:
                                    store(to + at, load(like_t, to + at, left) + grad, left)
                                else:  # the first that this pair gets
                                    store(to + at, grad, left)
                    # Then nothing is left to do head by head.
                    if packed and scale != 1:
                        for to in range(0, n * t_step, 8 * one):
                            store(slopes + to, load(like_e, slopes + to, 8) * splat(like_e, scale), 8)
                    for h in range(first_h, first_h if packed else last_h):
                        table = heads + h * (8 * HEAD_FIELDS)
                        weights_h, slopes_h = scratch + (h - first_h) * h_step, slopes + (h - first_h) * h_step
                        q_h, g_h = q_i + h * a.q_h, g_i + h * a.g_out_h
                        k_h = k_b + peek_int64(table + 8 * K_HEAD)
                        kvec_h = a.kvec + peek_int64(table + 8 * KVEC_HEAD)
                        att_h = a.att + h * a.att_h
                        kweight_h = a.kweight + peek_int64(table + 8 * KWEIGHT_HEAD)
                        u_h, gm_h = u_i + h * a.kquery_h, gm_i + h * a.g_mixed_h
                        delta = peek(like_e, deltas + (h - first_h) * one)
                        if has_drop and not joint:
                            for t in range(n):
                                counter = peek_int32(edge + 4 * (chunk + t))
                                if pair_counter:
                                    counter = row_number(a.row, i) * keys + peek_int32(col + 4 * (chunk + t))
                                x = counted(a.seed, b * num_heads + h, counter)
                                gain = drop_gain if kept(x, drop_from) else nil
                                w = peek(like_e, weights_h + t * t_step)
                                ds = w * (gain * peek(like_e, slopes_h + t * t_step) - delta)
                                poke(like_e, weights_h + t * t_step, w * gain)
                                poke(like_e, slopes_h + t * t_step, ds)
                        if need_dadd and not late_dadd:
                            dadd_h = a.dadd + b * a.dadd_b + h * a.dadd_h
                            for t in range(n):
                                to = dadd_h + peek_int32(edge + 4 * (chunk + t)) * dadd_e
                                poke(like_e, to, peek(like_e, to) + peek(like_e, slopes_h + t * t_step))
                        if need_dvvec:
                            dvvec_h = a.dvvec + block * a.dvvec_b + peek_int64(table + 8 * DVVEC_HEAD)
                            for t in range(n):
                                w = peek(like_e, weights_h + t * t_step)
                                if w != 0:
                                    e = peek_int32(edge + 4 * (chunk + t))
                                    add_scaled(like_v, dvvec_h + vector_row(vcode, e) * dvvec_e, w, g_h, value_size)
                        if features and need_dvfeat and a.g_mixed != 0:
                            for t in range(n):
                                w = peek(like_e, weights_h + t * t_step)
                                if w != 0:
                                    to = a.dvfeat + peek_int32(edge + 4 * (chunk + t)) * a.dvfeat_e
                                    add_scaled(like_f, to, w, gm_h, vfeat_size)
                        # From here on slopes hold the gradient of the form before scale and cap.
                        for t in range(n if scale != 1 or cap > 0 else 0):
                            ds = peek(like_e, slopes_h + t * t_step) * scale
                            if cap > 0 and ds != 0:
                                ratio = peek(like_e, capped + (h - first_h) * h_step + t * t_step) / cap
                                ds = ds * (real(like_e, 1.0) - ratio * ratio)
                            poke(like_e, slopes_h + t * t_step, ds)
                        if features and form == DOT:
                            if need_dkfeat:
                                for t in range(n):
                                    ds = peek(like_e, slopes_h + t * t_step)
                                    if ds != 0:
                                        to = a.dkfeat + peek_int32(edge + 4 * (chunk + t)) * a.dkfeat_e
                                        add_scaled(like_f, to, ds, u_h, kfeat_size)
                            if need_dkquery:
                                for c in range(block_count(like_f, kfeat_size)):
                                    at = c * block_width(like_f) * one
                                    left = kfeat_size - c * block_width(like_f)
                                    acc_u = zero(like_f)
                                    for t in range(n):
                                        ds = peek(like_e, slopes_h + t * t_step)
                                        if has_add and ds == 0:
                                            continue
                                        f_e = kfeat + peek_int32(edge + 4 * (chunk + t)) * kfeat_e
                                        acc_u = fma(splat(like_f, ds), load(like_f, f_e + at, left), acc_u)
                                    to = du_i + h * a.dkquery_h + at
                                    store(to, load(like_f, to, left) + acc_u, left)
                        if not need_dq and not need_dkvec and not need_datt and not need_projected:
                            continue
                        if (form != DOT and lined and not features) or packed_scores:
                            continue
                        dkvec_h = a.dkvec + block * a.dkvec_b + peek_int64(table + 8 * DKVEC_HEAD)
                        datt_h = a.datt + block * a.datt_b + h * a.datt_h
                        for c in range(block_count(like_q, score_size)):
                            at = c * block_width(like_q) * one
                            left = score_size - c * block_width(like_q)
                            acc, acc_att = zero(like_q), zero(like_q)
                            q_c = load(like_q, q_h + at, left)
                            att_c = zero(like_q)
                            if form != DOT:
                                att_c = load(like_q, att_h + at, left)
                            for t in range(n):
                                ds = peek(like_e, slopes_h + t * t_step)
                                if has_add and ds == 0:
                                    continue
                                j = peek_int32(col + 4 * (chunk + t))
                                y = load(like_q, k_h + j * k_n + at, left)
                                if has_kvec:
                                    e = peek_int32(edge + 4 * (chunk + t))
                                    y = y + load(like_q, kvec_h + vector_row(kcode, e) * kvec_e + at, left)
                                if form == DOT:
                                    acc = fma(splat(like_q, ds), y, acc)
                                    grad = splat(like_q, ds) * q_c
                                else:
                                    z = q_c + y
                                    if features:
                                        f_e = kfeat + peek_int32(edge + 4 * (chunk + t)) * kfeat_e
                                        z = z + projected(like_q, f_e, kweight_h + at, kweight_f, kfeat_size, left)
                                    grad = splat(like_q, ds) * leaky_gain(z, slope)
                                    acc = acc + grad
                                    acc_att = fma(splat(like_q, ds), leaky(z, slope), acc_att)
                                    grad = grad * att_c
                                if need_dkvec:
                                    e = peek_int32(edge + 4 * (chunk + t))
                                    to = dkvec_h + vector_row(kcode, e) * dkvec_e + at
                                    store(to, load(like_q, to, left) + grad, left)
                                if features and need_projected:
                                    e = peek_int32(edge + 4 * (chunk + t))
                                    f_e, df_e, dw_h = kfeat + e * kfeat_e, 0, 0
                                    if need_dkfeat:
                                        df_e = a.dkfeat + e * a.dkfeat_e
                                    if need_dkweight:
                                        dw_h = a.dkweight + block * a.dkweight_b + at
                                        dw_h = dw_h + peek_int64(table + 8 * DKWEIGHT_HEAD)
                                    add_projected(
                                        like_q, grad, f_e, kweight_h + at, df_e, dw_h, kweight_f, a.dkweight_f,
                                        kfeat_size, left,
                                    )  # fmt: skip
                            if need_dq:
                                if form != DOT:
                                    acc = acc * att_c
                                to = dq_i + h * a.dq_h + at
                                store(to, load(like_q, to, left) + acc, left)
                            if need_datt:
                                to = datt_h + at
                                store(to, load(like_q, to, left) + acc_att, left)
                    if form == DOT and packed_scores and need_dq:
                        fade_by = 0 if chunk == begin else ones
                        packed_mix(like_e, dq_i, slopes, t_step, k_b, k_n, pairs, n, fade_by, 0, side)
                    if form != DOT and packed_scores and need_dq:
                        packed_pulls(like_e, dq_i, slopes, t_step, q_i, k_b, k_n, pairs, n, a.att, slope, side)
                    if form != DOT and packed_scores and need_datt:
                        datt_b = a.datt + block * a.datt_b
                        packed_att(like_e, datt_b, slopes, t_step, q_i, k_b, k_n, pairs, n, slope, side)
                    if form != DOT and lined and not features and (need_dq or need_datt or need_dkvec):
                        edges, dkvec_b = edge + 4 * chunk, a.dkvec + block * a.dkvec_b
                        for to in range(0, side, 8 * one):
                            own, att_c = load(like_e, q_i + to, 8), load(like_e, a.att + to, 8)
                            acc_e, acc_att_e = zero(like_e), zero(like_e)
                            for t in range(n):
                                ds_e = load(like_e, slopes + t * t_step + to, 8)
                                z_e = own + lined_key(like_e, k_b, k_n, pairs, t, a.kvec, kvec_e, kcode, edges, to)
                                gain = leaky_gain(z_e, slope)
                                acc_e = fma(ds_e, gain, acc_e)
                                if need_dkvec:
                                    at = dkvec_b + vector_row(kcode, peek_int32(edges + 4 * t)) * dkvec_e + to
                                    store(at, fma(ds_e * gain, att_c, load(like_e, at, 8)), 8)
                                acc_att_e = fma(ds_e, leaky(z_e, slope), acc_att_e)
                            if need_dq:
                                store(dq_i + to, fma(acc_e, att_c, load(like_e, dq_i + to, 8)), 8)
                            if need_datt:
                                datt_b = a.datt + block * a.datt_b + to
                                store(datt_b, load(like_e, datt_b, 8) + acc_att_e, 8)

    return backward_rows
