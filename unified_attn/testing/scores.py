"""Laws of a score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unified_attn import attention_with_lse
from unified_attn.masks import Full, Mask
from unified_attn.pairs import fit
from unified_attn.scores import Form, Score
from unified_attn.testing import formula
from unified_attn.testing.call import SIZES, Call, Sizes, able, call, fitting
from unified_attn.testing.law import LawBroken, require, require_kind, require_same
from unified_attn.testing.learned import check_gradients, held, in_dtype
from unified_attn.vectors import Stored


def check_score(
    score: Score,
    *,
    mask: Mask | None = None,
    sizes: Sizes = SIZES,
    batch: int = 2,
    num_heads: int = 2,
    head_dim: int = 4,
    backends: Sequence[str] | None = None,
) -> None:
    """Holds a score to the laws of scores.

    It gives one number a pair, in the dtype of q and k, from that query and that key alone, in a table as in a list;
    its fused form, if it has one, is the same score; what it learns gets a finite gradient, confirmed by finite
    differences; and attention with it is a plain float64 softmax of scale * score on every back end that does not
    decline.

    Args:
        score: One's own score.
        mask: A ``Graph`` for a score that is tied to edges; default all pairs.
        sizes: Queries x keys to try; those that mask or score refuse with a ValueError are left out.
        batch: B.
        num_heads: Hq.
        head_dim: D and Dv.
        backends: Names; default all but ``flex``, which is slow.

    Raises:
        LawBroken: Naming the law, the sizes and the pair.
        ValueError: If it takes none of the sizes.

    Example:
        A score that compares a query with all keys, where it may look at one alone:

        >>> class Relative(Score):
        ...     def logits(self, q, k):
        ...         raw = (q * k).sum(-1)
        ...         return raw - raw.mean(-1, keepdim=True)
        >>> check_score(Relative(), sizes=[(2, 2)])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        unified_attn.testing.law.LawBroken: law broken: a pair's score is its own: Relative() at 2 queries x 2 keys, \
in a table: got ... at [0, 0, 0, 0], wanted ...
    """
    require_kind("scores are scores", score, Score)
    text = repr(score)
    require("the repr is readable", text.strip() != "" and "\n" not in text and " at 0x" not in text, repr(text))
    mask = Full() if mask is None else mask
    calls = [call(mask, queries, keys, batch, num_heads, head_dim) for queries, keys in sizes]
    taken = fitting(score.check, calls, text)
    exact = in_dtype(score, torch.float64)
    for one in taken:
        where = f"{text} at {one.sizes}"
        raw = _entries(exact, one, where)
        require_same("two calls agree", where, _entries(exact, one, where), raw)
        if one.pairs.is_dense:
            _each_its_own(exact, one, raw, where)
        _forms(exact, one, raw, where)
        with torch.no_grad():  # so that a back end without gradients takes part
            _attends(exact, one, raw, where, backends)
    small = min(taken, key=lambda one: len(one.query) if len(one.query) > 1 else 10**9)
    q, k, _ = (x.requires_grad_() for x in small.inputs())
    check_gradients(
        f"{text} at {small.sizes}",
        [*held(exact), ("q", q), ("k", k)],
        lambda: torch.cat([_entries(exact, small, text, q, k).flatten(), *_sink(exact)]),
    )


def _sink(score: Score) -> list[Tensor]:
    """A sink is no part of the raw score, but is learned."""
    return [] if score.sink is None else [score.sink]


def _entries(score: Score, one: Call, where: str, q: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Raw scores of the call's entries, ``[B, H, E]``, from lists of queries and keys."""
    if q is None or k is None:
        q, k, _ = one.inputs()
    law = "a score is one number a pair"
    pairs = one.pairs if not one.pairs.is_dense else one.listing(one.query, one.key)
    raw = score.on(q[:, :, one.query], k[:, :, one.key], pairs)
    require(law, isinstance(raw, Tensor), f"{where}: got a {type(raw).__name__}")
    wanted = [*q.shape[:2], len(one.query)]
    fits = raw.dim() == 3 and fit(raw.shape, wanted)
    require(law, fits, f"{where}: shape {list(raw.shape)}, wanted {wanted}")
    require("a score keeps the dtype", raw.dtype == q.dtype, f"{where}: {q.dtype} became {raw.dtype}")
    require("a score is finite", bool(raw.isfinite().all()), f"{where}: got NaN or inf")
    return raw.expand(wanted)


def _each_its_own(score: Score, one: Call, raw: Tensor, where: str) -> None:
    q, k, _ = one.inputs()
    law = "a pair's score is its own"
    size = (*raw.shape[:2], one.shape.num_queries, one.shape.num_keys)
    table = score.on(q[:, :, :, None], k[:, :, None], one.pairs).expand(size)
    require_same(law, f"{where}, in a table", table, raw.reshape(size), 1e-11)
    for n in {0, raw.shape[2] - 1} if raw.shape[2] else ():  # alone
        some = slice(n, n + 1)
        alone = score.on(q[:, :, one.query[some]], k[:, :, one.key[some]], one.listing(one.query[some], one.key[some]))
        require_same(law, f"{where}, pair {n} alone", alone.expand(*raw.shape[:2], 1), raw[:, :, some], 1e-11)
    order = torch.randperm(raw.shape[2], generator=torch.Generator().manual_seed(0))
    mixed = score.on(q[:, :, one.query[order]], k[:, :, one.key[order]], one.listing(one.query[order], one.key[order]))
    require_same(law, f"{where}, in another order", mixed.expand(raw.shape), raw[:, :, order], 1e-11)


def _scaled(score: Score, raw: Tensor, one: Call) -> Tensor:
    return score.finish(raw * score.scale(one.shape.head_dim))


def _forms(score: Score, one: Call, raw: Tensor, where: str) -> None:
    """The fused form, computed from what :class:`~unified_attn.scores.Form` says of it."""
    q, k, _ = one.inputs()
    form = score.form(q, k, None)
    require("fused says whether there is a form", score.fused == (form is not None), f"{where}: fused = {score.fused}")
    if form is None:
        return
    law = "the fused form is the same score"
    require_same(law, where, _of_form(form, score, one), _scaled(score, raw, one), 1e-10)
    if one.pairs.is_dense:
        return
    r = torch.linspace(-1.0, 1.0, len(one.query) * k.shape[1] * k.shape[3], dtype=k.dtype)
    r = r.reshape(len(one.query), k.shape[1], k.shape[3])
    form = score.form(q, k, Stored(r))
    if form is not None:
        wanted = score.on(q[:, :, one.query], k[:, :, one.key] + r.transpose(0, 1), one.pairs)
        require_same(law, f"{where}, with key vectors", _of_form(form, score, one), _scaled(score, wanted, one), 1e-10)


def _of_form(form: Form, score: Score, one: Call) -> Tensor:
    scale = score.scale(one.shape.head_dim)
    q, k = form.query[:, :, one.query], form.key[:, :, one.key]
    if form.key_vectors is not None:
        k = k + form.key_vectors.at_pairs()
    if form.contract_query is not None and form.contract_key is not None:
        q = (q * form.contract_query[:, None]).sum(-1, keepdim=True)
        k = (k * form.contract_key[:, None]).sum(-1, keepdim=True)
    if form.edge is not None:
        k = k + form.edge.t()[..., None]
    if form.att is None:
        dot = (q * k).sum(-1) * scale
        return dot if form.cap is None else form.cap * torch.tanh(dot / form.cap)
    both = q + k
    return scale * (torch.where(both > 0, both, form.negative_slope * both) * form.att[:, None]).sum(-1)


def _attends(score: Score, one: Call, raw: Tensor, where: str, backends: Sequence[str] | None) -> None:
    q, k, v = one.inputs()
    candidates = one.mask.candidates(one.shape)
    rest = one.mask if candidates is None or one.pairs.is_dense else candidates.rest
    visible = torch.ones(1, 1, 1, dtype=torch.bool) if rest is None else rest.on(one.pairs)
    out, lse = formula.softmax(
        _scaled(score, raw, one), one.entries(visible), one.query, v[:, :, one.key], one.shape.num_queries, score.sink
    )
    law = "attention is a softmax of scale * score"
    names = able(backends, q, k, v, mask=one.mask, score=score)
    if not names:
        raise LawBroken(law, f"{where}: every back end declines")
    for name in names:
        got = attention_with_lse(q, k, v, mask=one.mask, score=score, backend=name)
        require_same(law, f"{where}, back end {name}", got[0], out, 1e-9)
        require_same(law, f"{where}, lse of back end {name}", got[1], lse, 1e-9)
