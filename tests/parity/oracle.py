"""Attention written from its definition, in explicit sums: nothing of the library is imported here.

An *entry* is a key as one query sees it: entry e lets query ``query[e]`` read key ``key[e]``. A dense problem has an
entry for each pair, a graph one for each edge, so that parallel edges are entries of their own. Everything is torch
without in-place writes, so that autograd gives the gradients; nothing is stabilised, since float64 needs none here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass
class Spec:
    """One problem without any rule left in it. H is the number of query heads, G that of key heads."""

    q: Tensor  # [B, H, Nq, D]
    k: Tensor  # [B, G, Nk, D]
    v: Tensor  # [B, G, Nk, Dv]
    query: Tensor  # [E]
    key: Tensor  # [E]
    visible: Tensor  # bool [B, H, E]
    score: str = "dot"
    params: dict[str, Tensor | float | None] = field(default_factory=dict)
    scale: float = 1.0
    bias: Tensor | None = None  # broadcasts to [B, H, E]; finite
    q_turn: Tensor | None = None  # rotation matrices [B or 1, Nq, D, D]
    k_turn: Tensor | None = None  # [B or 1, Nk, D, D]
    key_vectors: Tensor | None = None  # [E, G, D] or [B or 1, E, G, D]
    value_vectors: Tensor | None = None  # [E, G, Dv] or [B or 1, E, G, Dv]
    sink: Tensor | None = None  # [H]
    factor: Tensor | None = None  # [B, H, E], what dropout multiplies the weights by


def attention(s: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, Nq, Dv], lse [B, H, Nq] and weights before dropout [B, H, E]."""
    batch, heads, queries, _ = s.q.shape
    own = [h // (heads // s.k.shape[1]) for h in range(heads)]  # the key head of each query head
    q = s.q if s.q_turn is None else (s.q_turn[:, None] @ s.q[..., None])[..., 0]
    k = s.k if s.k_turn is None else (s.k_turn[:, None] @ s.k[..., None])[..., 0]
    q_e, k_e, v_e = q[:, :, s.query], k[:, own][:, :, s.key], s.v[:, own][:, :, s.key]
    if s.key_vectors is not None:
        k_e = k_e + s.key_vectors[..., own, :].transpose(-3, -2)
    if s.value_vectors is not None:
        v_e = v_e + s.value_vectors[..., own, :].transpose(-3, -2)

    logits = s.scale * raw_score(s.score, q_e, k_e, s.params)
    if s.params.get("cap") is not None:
        logits = s.params["cap"] * torch.tanh(logits / s.params["cap"])
    if s.bias is not None:
        logits = logits + s.bias
    exp = torch.where(s.visible, logits, 0.0).exp() * s.visible  # hidden entries never reach exp: no inf, no NaN
    total = exp.new_zeros(batch, heads, queries).index_add(2, s.query, exp)
    if s.sink is not None:
        total = total + s.sink.exp()[:, None]
    empty = total == 0
    safe = torch.where(empty, 1.0, total)
    weights = exp / safe[:, :, s.query]
    used = weights if s.factor is None else weights * s.factor
    out = exp.new_zeros(batch, heads, queries, s.v.shape[3]).index_add(2, s.query, used[..., None] * v_e)
    return out, torch.where(empty, -math.inf, safe.log()), weights


def raw_score(name: str, q: Tensor, k: Tensor, params: dict) -> Tensor:
    """Scores of q [B, H, E, D] and k [B, H, E, D] before scale and cap."""
    if name == "dot":
        return (q * k).sum(-1)
    if name == "l1":
        return -(q - k).abs().sum(-1)
    slope = params["slope"]
    if name == "gat":
        x = (params["att_dst"][:, None] * q).sum(-1) + (params["att_src"][:, None] * k).sum(-1)
        if params.get("edge") is not None:
            x = x + params["edge"].T
        return torch.where(x > 0, x, slope * x)
    if name == "gatv2":
        x = q + k
        return (params["att"][:, None] * torch.where(x > 0, x, slope * x)).sum(-1)
    raise AssertionError(name)


def attention_in_loops(s: Spec) -> tuple[list, list]:
    """The same in Python's numbers: ``out[b][h][i][d]`` and ``lse[b][h][i]``, for tiny sizes."""
    q, k, v = s.q.tolist(), s.k.tolist(), s.v.tolist()
    query, key, visible = s.query.tolist(), s.key.tolist(), s.visible.tolist()
    batch, heads, group = len(q), len(q[0]), len(q[0]) // len(k[0])
    dims, value_dims = s.v.shape[3] and range(s.q.shape[3]), range(s.v.shape[3])
    entries = range(len(query))

    def turned(turn: Tensor | None, x: list, b: int, n: int) -> list:
        if turn is None:
            return x
        matrix = turn[b if turn.shape[0] > 1 else 0, n].tolist()
        return [sum(matrix[c][d] * x[d] for d in dims) for c in dims]

    def plus(x: list, vectors: Tensor | None, b: int, e: int, g: int) -> list:
        if vectors is None:
            return x
        own = vectors if vectors.dim() == 3 else vectors[b if vectors.shape[0] > 1 else 0]
        return [a + r for a, r in zip(x, own[e, g].tolist(), strict=True)]

    def bent(x: float) -> float:
        return x if x > 0 else s.params["slope"] * x

    def logit(b: int, h: int, e: int) -> float:
        qi = turned(s.q_turn, q[b][h][query[e]], b, query[e])
        kj = plus(turned(s.k_turn, k[b][h // group][key[e]], b, key[e]), s.key_vectors, b, e, h // group)
        if s.score == "dot":
            x = sum(qi[d] * kj[d] for d in dims)
        elif s.score == "l1":
            x = -sum(abs(qi[d] - kj[d]) for d in dims)
        elif s.score == "gat":
            x = sum(float(s.params["att_dst"][h, d]) * qi[d] for d in dims)
            x += sum(float(s.params["att_src"][h, d]) * kj[d] for d in dims)
            x += float(s.params["edge"][e, h]) if s.params.get("edge") is not None else 0.0
            x = bent(x)
        else:
            x = sum(float(s.params["att"][h, d]) * bent(qi[d] + kj[d]) for d in dims)
        x *= s.scale
        if s.params.get("cap") is not None:
            x = s.params["cap"] * math.tanh(x / s.params["cap"])
        return x if s.bias is None else x + float(s.bias.expand(batch, heads, len(query))[b, h, e])

    outs, lses = [], []
    for b in range(batch):
        outs.append([])
        lses.append([])
        for h in range(heads):
            rows, ends = [], []
            for i in range(s.q.shape[2]):
                exp = {e: math.exp(logit(b, h, e)) for e in entries if query[e] == i and visible[b][h][e]}
                total = sum(exp.values()) + (0.0 if s.sink is None else math.exp(float(s.sink[h])))
                row = [0.0 for _ in value_dims]
                for e, weight in exp.items():
                    factor = 1.0 if s.factor is None else float(s.factor[b, h, e])
                    value = plus(v[b][h // group][key[e]], s.value_vectors, b, e, h // group)
                    row = [row[d] + factor * weight / total * value[d] for d in value_dims]
                rows.append(row)
                ends.append(math.log(total) if total > 0 else -math.inf)
            outs[-1].append(rows)
            lses[-1].append(ends)
    return outs, lses


# Slopes of Press et al., 2022: powers of 1/2 for 8 heads (section 3), and the lists that the authors' code prints.
ALIBI_SLOPES = {
    1: [1 / 256],
    2: [1 / 16, 1 / 256],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
}


def rotations(
    positions: Tensor,
    size: int,
    layout: str,
    rotary: int,
    base: float = 10000.0,
    rates: Sequence[float] | None = None,
    magnitude: float = 1.0,
) -> Tensor:
    """The matrices R_m of Su et al., 2021, Eq. 15, for positions [B, N]: [B, N, size, size].

    In the paper coordinates 2p and 2p + 1 are turned together; with ``half``, p and p + rotary / 2. ``rates`` stand in
    for the paper's frequencies, and ``magnitude`` stretches what is turned.
    """
    out = torch.eye(size, dtype=torch.float64).repeat(*positions.shape, 1, 1)
    for p in range(rotary // 2):
        angle = positions.double() * (base ** (-2 * p / rotary) if rates is None else rates[p])
        a, b = (2 * p, 2 * p + 1) if layout == "interleaved" else (p, p + rotary // 2)
        out[..., a, a] = out[..., b, b] = magnitude * angle.cos()
        out[..., a, b], out[..., b, a] = -magnitude * angle.sin(), magnitude * angle.sin()
    return out


def yarn_rates(size: int, base: float, factor: float, trained: int, fast: float = 32, slow: float = 1) -> list[float]:
    """Peng et al., 2023, Eq. 18 to 21, pair by pair; the ends of the ramp are whole pairs, as in the authors' code."""

    def pair(turns: float) -> float:  # solves trained * base^(-2p / size) = 2 pi turns for p
        return size / 2 * math.log(trained / (2 * math.pi * turns)) / math.log(base)

    first, last = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), size - 1)
    rates = []
    for p in range(size // 2):
        own = base ** (-2 * p / size)
        share = float(p > first) if first == last else min(max((p - first) / (last - first), 0.0), 1.0)
        rates.append((1 - share) * own + share * own / factor)
    return rates


def llama3_rates(size: int, base: float, factor: float, low: float, high: float, trained: int) -> list[float]:
    """By wavelength, as the Llama 3.1 models: kept, interpolated, or between."""
    rates = []
    for p in range(size // 2):
        own = base ** (-2 * p / size)
        wavelength = 2 * math.pi / own
        if wavelength < trained / high:
            rates.append(own)
        elif wavelength > trained / low:
            rates.append(own / factor)
        else:
            share = (trained / wavelength - low) / (high - low)
            rates.append((1 - share) * own / factor + share * own)
    return rates


def t5_bucket(distance: int, buckets: int, most: int, both: bool) -> int:
    """Bucket of key minus query, from the definition: exact buckets, then logarithmic ones."""
    start = 0
    if both:
        buckets //= 2
        start = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return start + distance
    step = (buckets - exact) * math.log(distance / exact) / math.log(most / exact)
    return start + min(exact + math.floor(step + 1e-9), buckets - 1)


def dropout_factor(
    seed: int, batch: int, heads: int, counters: Sequence[int], p: float, dtype: torch.dtype = torch.float64
) -> Tensor:
    """What dropout multiplies weights by, [B, H, E]: a hash of (seed, b, h, counter) decides, as documented."""
    with np.errstate(over="ignore"):
        b, h = np.arange(batch, dtype=np.uint64)[:, None, None], np.arange(heads, dtype=np.uint64)[None, :, None]
        counter = np.asarray(counters, dtype=np.uint64)[None, None, :]
        x = np.uint64(seed) + (b * np.uint64(heads) + h) * np.uint64(0x9E3779B97F4A7C15)
        x = x + counter * np.uint64(0xD1B54A32D192ED03)
        for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            x = (x ^ (x >> np.uint64(32))) * np.uint64(multiplier)
        x = x ^ (x >> np.uint64(32))
    kept = torch.from_numpy((x >> np.uint64(40)) >= np.uint64(math.floor(p * 2**24)))
    return kept.to(dtype) / (1 - p)
