"""Laws of a bias."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unified_attn import attention, attention_with_lse
from unified_attn.biases import Additive, Bias
from unified_attn.masks import Full, Mask
from unified_attn.testing import formula
from unified_attn.testing.call import SIZES, Call, Sizes, able, call, fitting
from unified_attn.testing.law import LawBroken, require, require_kind, require_same
from unified_attn.testing.learned import check_gradients, held, in_dtype


def check_bias(
    bias: Bias,
    *,
    mask: Mask | None = None,
    sizes: Sizes = SIZES,
    batch: int = 2,
    num_heads: int = 2,
    head_dim: int = 4,
    relative: bool = False,
    backends: Sequence[str] | None = None,
) -> None:
    """Holds a bias to the laws of biases.

    It adds floats, finite or -inf, the same to a pair in a table and in a list, twice the same; sums commute; what it
    learns gets a finite gradient, confirmed by finite differences; half precision rounds what is learned, by a few
    units in the last place, and no constant; and attention with it is a plain float64 softmax of scale * score + bias,
    whatever the scale, on every back end that does not decline.

    Args:
        bias: One's own bias.
        mask: A ``Graph`` for values that are tied to edges; default all pairs.
        sizes: Queries x keys to try; those that mask or bias refuse with a ValueError are left out.
        batch: B.
        num_heads: Hq.
        head_dim: D and Dv.
        relative: Whether only differences of positions should matter: all are shifted then.
        backends: Names; default all but ``flex``, which is slow.

    Raises:
        LawBroken: Naming the law, the sizes and the pair.
        ValueError: If it takes none of the sizes.

    Example:
        A bias which looks up the keys that there are, and so differs between a table and a list:

        >>> class Early(Bias):
        ...     def add(self, b, h, i, j, edge):
        ...         return -0.1 * (j - j.min()).double()
        >>> check_bias(Early(), sizes=[(2, 3)])
        Traceback (most recent call last):
            ...
        unified_attn.testing.law.LawBroken: law broken: listed values are those of the table: Early() at 2 queries x \
3 keys: got -0 at batch 0, head 0, query 1, key 2, wanted -0.2
    """
    require_kind("biases are biases", bias, Bias)
    text = repr(bias)
    require("the repr is readable", text.strip() != "" and "\n" not in text and " at 0x" not in text, repr(text))
    mask = Full() if mask is None else mask

    def fits(shape: object) -> None:
        for term in bias.terms:
            term.check(shape)  # type: ignore[arg-type]

    calls = [call(mask, queries, keys, batch, num_heads, head_dim) for queries, keys in sizes]
    exact = in_dtype(bias, torch.float64)
    taken = fitting(fits, calls, text)
    for one in taken:
        where = f"{text} at {one.sizes}"
        for term in bias.terms:
            _adds(term, one, where)
        with torch.no_grad():  # so that a back end without gradients takes part
            _attends(exact, one, where, backends)
        _commutes(exact, one, where)
        if relative:
            _shifts(exact, one, where)
    small = min(taken, key=lambda one: len(one.query) if len(one.query) > 1 else 10**9)  # one pair weighs 1, always
    q, k, v = small.inputs()
    check_gradients(
        f"{text} at {small.sizes}",
        held(exact),
        lambda: torch.cat([x.flatten(2) for x in _finite(attention_with_lse(q, k, v, mask=mask, bias=exact))], 2),
    )
    for one in taken:
        _halves(bias, one, f"{text} at {one.sizes}")


def _finite(answer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return answer[0], answer[1].masked_fill(answer[1] == -torch.inf, 0.0)


def _values(term: Bias, one: Call) -> Tensor | None:
    """What a term adds to the call's entries, ``[B, H, E]``; -inf where it is at or below its dtype's lowest."""
    try:
        values = term.on(one.pairs)
    except TypeError as error:
        raise LawBroken("a bias adds floats", str(error)) from error
    if values is None:
        return None
    return one.entries(values.masked_fill(values <= torch.finfo(values.dtype).min, -torch.inf))


def _adds(term: Bias, one: Call, where: str) -> None:
    values = _values(term, one)
    if values is None:
        return
    odd = values.isnan() | (values == torch.inf)
    require("values are finite or -inf", not bool(odd.any()), f"{where}: {int(odd.sum())} are NaN or +inf")
    again = _values(term, one)
    require_same("two calls agree", where, values if again is None else again, values)
    if one.pairs.is_dense and values.shape[2]:
        chosen = torch.randint(values.shape[2], (values.shape[2],), generator=torch.Generator().manual_seed(0))
        chosen = torch.cat([chosen.new_tensor([values.shape[2] - 1]), chosen])
        for some in (chosen, chosen[:1]):
            listed = term.on(one.listing(one.query[some], one.key[some]))
            law = "listed values are those of the table"
            require(law, listed is not None, f"{where}: of a list it adds nothing")
            if listed is not None:
                listed = listed.masked_fill(listed <= torch.finfo(listed.dtype).min, -torch.inf)
                listed = listed.expand(*values.shape[:2], len(some))
                require_same(law, where, listed, values[:, :, some], 1e-6, (one.query[some], one.key[some]))


def _attends(bias: Bias, one: Call, where: str, backends: Sequence[str] | None) -> None:
    law = "attention is a softmax of scale * score + bias"
    for scale in (1.0, 0.0, 0.3):
        q, k, v = one.inputs()
        turned = (q, k)
        for term in bias.terms:
            turned = term.turn(*turned, one.pairs.q_positions, one.pairs.k_positions)
        require(
            "a turn keeps shape and dtype",
            all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(turned, (q, k), strict=True)),
            f"{where}: q and k become {[f'{list(x.shape)} {x.dtype}' for x in turned]}",
        )
        at, own, values = turned[0][:, :, one.query], turned[1][:, :, one.key], v[:, :, one.key]
        visible = one.entries(one.mask.on(one.pairs)) if one.pairs.is_dense else _seen(one)
        total = torch.zeros(visible.shape, dtype=torch.float64)
        for term in bias.terms:
            key, value = (x if x is None else x.at_pairs() for x in term.vectors_on(one.pairs, torch.float64))
            if one.pairs.is_dense:
                key, value = (x if x is None else x.flatten(2, 3) for x in (key, value))
            own = own if key is None else own + key
            values = values if value is None else values + value
            added = _values(term, one)
            if added is not None:
                visible = visible & (added != -torch.inf)
                total = total + torch.where(added == -torch.inf, 0.0, added)
        logits = scale * (at * own).sum(-1) + total
        out, lse = formula.softmax(logits, visible, one.query, values, one.shape.num_queries)
        for name in able(backends, q, k, v, mask=one.mask, bias=bias, scale=scale):
            got = attention_with_lse(q, k, v, mask=one.mask, bias=bias, scale=scale, backend=name)
            require_same(law, f"{where}, scale {scale:g}, back end {name}", got[0], out, 1e-9)
            require_same(law, f"{where}, scale {scale:g}, lse of back end {name}", got[1], lse, 1e-9)


def _seen(one: Call) -> Tensor:
    """Which of a graph's edges the mask shows."""
    candidates = one.mask.candidates(one.shape)
    rest = None if candidates is None else candidates.rest
    return one.entries(torch.ones(1, 1, 1, dtype=torch.bool) if rest is None else rest.on(one.pairs))


def _commutes(bias: Bias, one: Call, where: str) -> None:
    other = Additive(lambda b, h, i, j: -0.1 * (i - j).abs().double())
    q, k, v = one.inputs()
    first, second = (
        attention(q, k, v, mask=one.mask, bias=both, backend="reference") for both in (bias + other, other + bias)
    )
    require_same("sums commute", where, first, second, 1e-12)


def _halves(bias: Bias, one: Call, where: str) -> None:
    """The same numbers in bfloat16 and in float64 give the same, but for the rounding of what is learned."""
    half = in_dtype(bias, torch.bfloat16)
    wide = in_dtype(half, torch.float64)
    numbers = torch.finfo(torch.bfloat16)
    if any(bool((x <= numbers.min).any()) for _, x in held(half)):  # the lowest half is no lowest double
        return
    law = "half precision rounds what is learned alone"
    rounded = False
    for term, same in zip(half.terms, wide.terms, strict=True):
        got, wanted = _values(term, one), _values(same, one)
        if got is None or wanted is None:
            continue
        learns = any(x.requires_grad for _, x in held(term))
        largest = max(wanted[wanted.isfinite()].abs().tolist(), default=0.0)
        # A weight times a distance, say, is a product in the weight's own dtype.
        require_same(law, where, got, wanted, 4.0 * numbers.eps * min(1.0, largest) if learns else 1e-4)
        rounded = rounded or learns
    if not rounded:
        q, k, v = one.inputs(torch.float32)
        got = attention(q, k, v, mask=one.mask, bias=half, backend="reference")
        wanted = attention(q.double(), k.double(), v.double(), mask=one.mask, bias=wide, backend="reference")
        require_same(law, where, got, wanted, 1e-4)


def _shifts(bias: Bias, one: Call, where: str) -> None:
    q, k, v = one.inputs()
    options = {"mask": one.mask, "bias": bias, "backend": "reference"}
    i, j = one.pairs.q_positions[0], one.pairs.k_positions[0]
    still = attention(q, k, v, q_positions=i, k_positions=j, **options)  # type: ignore[arg-type]
    moved = attention(q, k, v, q_positions=i + 11, k_positions=j + 11, **options)  # type: ignore[arg-type]
    require_same("a relative bias does not see a shift", where, moved, still, 1e-9)
