"""One call of the operator, checked once and lowered once: what back ends see in place of masks, biases and scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unified_attn._watched import watched
from unified_attn.dropout import keep
from unified_attn.pairs import Pairs, Positioned, Shape, check_integers, counted, describe, fit, fits
from unified_attn.rows import Listed, Rows
from unified_attn.vectors import Vectors

if TYPE_CHECKING:
    from unified_attn.biases.base import Bias
    from unified_attn.masks.base import Candidates, Mask, Reach, Spans
    from unified_attn.scores.base import Form, Score

LAYOUT = {"q": "[B, Hq, Nq, D]", "k": "[B, Hkv, Nk, D]", "v": "[B, Hkv, Nk, Dv]"}


@dataclass(frozen=True, eq=False)
class Lowered:
    """What remains of a call once mask, bias and score have been asked: tensors.

    All are float32, or float64 where the inputs are, whatever the inputs' dtype. A dense problem has
    pairs ``[B, Hq, Nq, Nk]``, a listed one ``[B, Hq, E]``.

    Args:
        q: Queries ``[B, Hq, Nq, D]``, turned.
        k: Keys ``[B, Hkv, Nk, D]``, turned.
        v: Values ``[B, Hkv, Nk, Dv]``. Rows of q, k and v that take part in no visible pair are zeroed where what
            they hold (NaN, say) is not silenced by a weight of 0; unless the back end asked for them as they are.
        pairs: Index tensors of the pairs.
        add: Added to the logits, ``[1 | B, 1 | Hq, pairs]`` with -inf = hidden; None = nothing.
        hides: Whether it may hide pairs; False where it is known to hold no -inf.
        key_vectors: Added to the key of each pair, or None.
        value_vectors: Added to the value of each pair, or None.
        score: The score, to be asked for :meth:`logits`.
        scale: Multiplies the raw scores.
        dropout_p: Probability to drop a weight.
        seed: One int64 number, for the counter from which dropout draws; None without dropout.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    pairs: Pairs
    add: Tensor | None
    hides: bool
    key_vectors: Vectors | None
    value_vectors: Vectors | None
    score: Score
    scale: float
    dropout_p: float
    seed: Tensor | None

    def rows(self) -> Rows:
        """The listed pairs, compressed; sorted once and kept.

        Raises:
            ValueError: If the problem is dense.
        """
        return self._listed().rows()

    @property
    def group(self) -> int:
        """Query heads a key head."""
        return self.q.shape[1] // self.k.shape[1]

    def logits(self) -> Tensor:
        """Logits, scale * score + add, at all pairs, hidden ones -inf: ``[B, Hq, Nq, Nk]`` or ``[B, Hq, E]``."""
        raw = self.score.finish(self._raw() * self.scale)
        if self.add is None:
            return raw
        hidden = self.add == -torch.inf
        # Filled rather than added: a hidden score may be inf, and inf - inf is no longer hidden.
        return (raw + self.add.masked_fill(hidden, 0.0)).masked_fill(hidden, -torch.inf)

    def _raw(self) -> Tensor:
        """Scores of all pairs."""
        if not self.pairs.is_dense:
            q = self.q.index_select(2, self.pairs.query.flatten())
            return self._scores(self.score.on(q, self.keys(), self.pairs))
        q, k = self.q[:, :, :, None], self._per_query_head(self.k)[:, :, None]
        if self.key_vectors is None:
            return self._scores(self.score.on(q, k, self.pairs))
        if self.score.linear:  # then no vector of a pair need be formed
            return self._scores(self.score.on(q, k, self.pairs)) + self.key_vectors.scores(self.score.logits, self.q)
        k = self._per_query_head(self.k[:, :, None] + self.key_vectors.at_pairs())
        return self._scores(self.score.on(q, k, self.pairs))

    def _scores(self, raw: object) -> Tensor:
        """What the score returned, for every pair; one's own may have returned anything."""
        sizes, layout = [*self.q.shape[:2], self.pairs.query.shape[-1]], "[B, Hq, E]"
        if self.pairs.is_dense:
            sizes, layout = [*self.q.shape[:3], self.k.shape[2]], "[B, Hq, Nq, Nk]"
        name = type(self.score).__name__
        if not isinstance(raw, Tensor):
            raise TypeError(f"{name} must return a tensor of scores, not {type(raw).__name__}")
        if raw.dim() != len(sizes) or not fit(raw.shape, sizes):
            raise ValueError(
                f"{name} must return scores {layout} = {sizes}, not {list(raw.shape)}: one a pair, e.g. (q * k).sum(-1)"
            )
        return raw.expand(sizes)

    def keys(self) -> Tensor:
        """Keys a query head: ``[B, Hq, Nk, D]``, or at the listed pairs with their vectors, ``[B, Hq, E, D]``.

        Raises:
            ValueError: If vectors belong to a dense table of pairs: then there is no key apart from a query.
        """
        return self._at_pairs("key", self.k, self.key_vectors)

    def values(self) -> Tensor:
        """Values a query head: ``[B, Hq, Nk, Dv]``, or at the listed pairs with their vectors, ``[B, Hq, E, Dv]``.

        Raises:
            ValueError: As :meth:`keys`; :meth:`mix` takes all.
        """
        return self._at_pairs("value", self.v, self.value_vectors)

    def mix(self, weights: Tensor) -> Tensor:
        """Sums of values and their vectors with weights ``[B, Hq, Nq, Nk]``, or over a list ``[B, Hq, Nq, E]``."""
        if self.pairs.is_dense and self.value_vectors is not None:
            return weights @ self._per_query_head(self.v) + self.value_vectors.mix(weights)
        return weights @ self.values()

    def _at_pairs(self, side: str, x: Tensor, vectors: Vectors | None) -> Tensor:
        if not self.pairs.is_dense:
            x = x.index_select(2, self.pairs.key.flatten())
            x = x if vectors is None else x + vectors.at_pairs()
        elif vectors is not None:
            raise ValueError(f"each pair has a {side} of its own here; ask for logits() and mix(weights)")
        return self._per_query_head(x)

    def _per_query_head(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.group, dim=1)

    def silenced(self) -> Lowered:
        """The same with 0 in place of what takes part in no visible pair; that may be NaN, and reaches nothing."""
        return _silenced(self)

    def without_lone_queries(self) -> Lowered:
        """The same with 0 in place of queries of no pair, hidden or not.

        Raises:
            ValueError: If the problem is dense.
        """
        queries, _ = self._listed().met()
        return self if queries is None else replace(self, q=_silence(self.q, queries[None, None]))

    def _listed(self) -> Listed:
        if self.pairs.pairs is None:
            raise ValueError("a dense problem lists no pairs")
        return self.pairs.pairs

    def form(self) -> Form | None:
        """The score in the form of a fused kernel, or None."""
        return self.score.form(self.q, self.k, self.key_vectors)

    def dropout(self) -> Tensor | None:
        """Factors of the weights, 0 or 1 / (1 - p), that broadcast to the pairs; None if nothing is dropped.

        Drawn from a counter, so that every back end draws alike for one seed.
        """
        return None if self.seed is None else dropout(self.pairs, self.dropout_p, self.seed, self.q.dtype)


def dropout(pairs: Pairs, p: float, seed: Tensor, dtype: torch.dtype) -> Tensor:
    """Factors of the weights at these pairs, 0 or 1 / (1 - p)."""
    edge = pairs.edge
    counter = pairs.query * pairs.shape.num_keys + pairs.key if edge is None else edge
    kept = keep(seed, pairs.batch, pairs.head, pairs.shape.num_heads, counter, p)
    return kept.to(dtype) * (1.0 / (1.0 - p) if p < 1.0 else 0.0)


@dataclass(frozen=True, eq=False)
class Problem(Positioned):
    """A checked call: what a back end decides upon, and lowers in the form that it understands.

    Args:
        q: Queries as given, ``[B, Hq, Nq, D]``.
        k: Keys as given.
        v: Values as given.
        mask: The mask.
        bias: The bias.
        score: The score.
        scale: Multiplies the raw scores.
        dropout_p: Probability to drop a weight.
        q_given: Positions ``[1 | B, Nq]``, or None for the default ones.
        k_given: ``[1 | B, Nk]``, or None with ``q_given``.
        shape: All sizes.
        candidates: The pairs that the mask names in O(edges); None = all of them.
        needs_lse: Whether the log-sum-exp is asked for; else a back end may return None in its place.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    bias: Bias
    score: Score
    scale: float
    dropout_p: float
    q_given: Tensor | None
    k_given: Tensor | None
    shape: Shape
    candidates: Candidates | None
    needs_lse: bool = True

    @property
    def band(self) -> Reach | None:
        """(left, right) if the mask is exactly a band of positions, None = unlimited."""
        return self.mask.band()

    @cached_property
    def spans(self) -> Spans | None:
        """The mask as one run of keys a query, if it is that; not for compiled code."""
        return self.mask.spans(self.shape)

    @property
    def has_edges(self) -> bool:
        """Whether the pairs are a graph's edges: parallel ones count, and values may be tied to them."""
        return self.shape.num_edges is not None

    @property
    def bare(self) -> bool:
        """Whether nothing is added to logits, nor dropped of the weights."""
        return not self.adds and self.dropout_p == 0.0

    @property
    def adds(self) -> bool:
        """Whether the bias adds to the logits."""
        return any(term.adds for term in self.bias.terms)

    @property
    def relative(self) -> bool:
        """Whether what is added depends on the head and on the rows' distance j - i alone."""
        return self.shape.offset is not None and all(term.relative or not term.adds for term in self.bias.terms)

    @property
    def hides_nothing(self) -> bool:
        """Whether the mask is a band that holds every pair."""
        band, offset = self.band, self.shape.offset
        if band is None or band == (None, None):
            return band is not None
        left, right = band
        return (
            offset is not None
            and (left is None or left >= offset + self.shape.num_queries - 1)
            and (right is None or right >= self.shape.num_keys - 1 - offset)
        )

    @property
    def fused(self) -> bool:
        """Whether the score has a form that fused kernels compute."""
        return self.score.fused

    @property
    def form(self) -> Form | None:
        """That form, of q and k as they were given, without what a bias adds to keys; or None."""
        return self.score.form(self.q, self.k, None) if self.fused else None

    @property
    def has_vectors(self) -> bool:
        """Whether vectors of pairs are added to keys or values."""
        return any(term.has_vectors for term in self.bias.terms)

    @property
    def num_pairs(self) -> int:
        """Pairs that a list would hold; all of them if the mask names none."""
        return (
            self.shape.num_queries * self.shape.num_keys if self.candidates is None else self.candidates.pairs.num_pairs
        )

    @property
    def keys_a_query(self) -> float:
        """Pairs of such a list, on average."""
        return self.num_pairs / max(self.shape.num_queries, 1)

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: float64 for float64 inputs, else float32."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def dense(self, *, masked: bool = True) -> Lowered:
        """Every query with every key. Not for a graph's edges: those are listed.

        Args:
            masked: Hide what the mask hides; not for a kernel that does that by itself.
        """
        pairs = Pairs(self.shape, self.q_given, self.k_given)
        return self._lower(pairs, self.mask if masked else None, clean=True)

    def listed(self, *, clean: bool = True) -> Lowered:
        """The pairs that the mask names.

        Args:
            clean: Zero the rows of q, k and v in no visible pair. A kernel that skips hidden pairs before it reads
                anything saves the copies.

        Raises:
            ValueError: If the mask names no list.
        """
        if self.candidates is None:
            raise ValueError(f"{self.mask!r} lists no pairs; lower it with dense()")
        pairs = Pairs(self.shape, self.q_given, self.k_given, self.candidates.list())
        return self._lower(pairs, self.candidates.rest, clean)

    def turned(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v in the dtype computed in, turned, and not cleaned."""
        q, k, v = (x.to(self.dtype) for x in (self.q, self.k, self.v))
        for term in self.bias.terms:
            if term.turns:
                q, k = term.turn(q, k, self.q_positions, self.k_positions)
        return q, k, v

    def added(self, pairs: Pairs) -> Tensor | None:
        """What is added to the logits of these pairs, -inf where mask or bias hides: None if nothing is."""
        return self._add(pairs, self.mask)[0]

    def added_by_bias(self, pairs: Pairs) -> Tensor | None:
        """The same without what the mask hides."""
        return self._add(pairs, None)[0]

    def seed(self) -> Tensor | None:
        """The number from which dropout draws: a new one each time, one a call; None without dropout."""
        return torch.randint(2**62, (1,)) if self.dropout_p > 0.0 else None

    def _lower(self, pairs: Pairs, mask: Mask | None, clean: bool) -> Lowered:
        q, k, v = self.q, self.k, self.v
        if q.dtype != self.dtype:
            q, k, v = (x.to(self.dtype) for x in (q, k, v))
        vectors: list[Vectors | None] = [None, None]
        for term in self.bias.terms:
            if term.turns:
                q, k = term.turn(q, k, self.q_positions, self.k_positions)
            for side, extra in enumerate(term.vectors_on(pairs, self.dtype)):
                if extra is not None:
                    found = vectors[side]
                    vectors[side] = extra if found is None else found + extra
        add, hides = self._add(pairs, mask)
        lowered = Lowered(
            q=q,
            k=k,
            v=v,
            pairs=pairs,
            add=add,
            hides=hides,
            key_vectors=vectors[0],
            value_vectors=vectors[1],
            score=self.score,
            scale=self.scale,
            dropout_p=self.dropout_p,
            seed=self.seed(),
        )
        return _silenced(lowered) if clean else lowered

    def _add(self, pairs: Pairs, mask: Mask | None) -> tuple[Tensor | None, bool]:
        """The bias with -inf where the mask or a term hides: the one carrier of both; and whether one of them may."""
        if mask is None and not self.adds:
            return None, False
        total: Tensor | None = None
        hidden: Tensor | None = None if mask is None or mask.band() == (None, None) else ~mask.on(pairs)
        # Each term by its own dtype's lowest value, before the sum: two halves of it must not add up to a number.
        found = [values for term in self.bias.terms if (values := term.on(pairs)) is not None]
        lowest = [_lowest(values) for values in found]
        if len(found) == 1 and hidden is None and lowest[0] is not None:  # in one pass
            total, hides = found[0].to(self.dtype).masked_fill(lowest[0], -torch.inf), True
        else:
            for values, low in zip(found, lowest, strict=True):
                values = values.to(self.dtype)
                if low is not None:
                    values = values.masked_fill(low, 0.0)
                    hidden = low if hidden is None else hidden | low
                total = values if total is None else total + values
            hides = hidden is not None
        if hidden is not None:
            if total is None:
                total = torch.zeros((), dtype=self.dtype, device=hidden.device)
            total, hidden = torch.broadcast_tensors(total, hidden)
            total = total.masked_fill(hidden, -torch.inf)
        elif total is not None and (len(found) > 1 or found[0].dtype != total.dtype):
            hides = not _all_above(total, -torch.inf)  # finite terms may add up to -inf, or be it in fewer bits
        # A rule may return fewer dimensions than the pairs have: a constant has none.
        missing = 0 if total is None else pairs.query.dim() - total.dim()
        return total if total is None or not missing else total[(None,) * missing], hides


def _lowest(values: Tensor) -> Tensor | None:
    """Where values are the lowest of their dtype, which hides a pair; None = nowhere, where a look tells."""
    least = torch.finfo(values.dtype).min
    return None if _all_above(values, least) else values <= least


def _all_above(values: Tensor, least: float) -> bool:
    """Whether all values are known to be above that; compiled code could not know, and a GPU would be waited for."""
    if watched(values) or not values.is_cpu:
        return False
    return values.numel() == 0 or float(values.detach().amin()) > least


def _silenced(low: Lowered) -> Lowered:
    """Zeroes the queries, keys and values of no visible pair, and the vectors of pairs hidden from everybody."""
    shape = low.pairs.shape
    if low.pairs.is_dense:
        if low.add is None or not low.hides or _is_harmless(low):
            return low
        visible = low.add != -torch.inf
        queries, keys = visible.any(3), visible.any(2)
    elif low.key_vectors is None and low.value_vectors is None and _is_harmless(low):
        return low
    elif low.add is None or not low.hides:
        some_queries, some_keys = (x if x is None else x[None, None] for x in low._listed().met())
        return replace(low, q=_silence(low.q, some_queries), k=_silence(low.k, some_keys), v=_silence(low.v, some_keys))
    else:
        query, key = low.pairs.query.flatten(), low.pairs.key.flatten()
        seen = low.add != -torch.inf
        seen = seen.expand(*seen.shape[:2], query.shape[0])
        ends = ((query, shape.num_queries), (key, shape.num_keys))
        queries, keys = (
            seen.new_zeros((*seen.shape[:2], size), dtype=torch.int32).index_add(2, end, seen.int()) > 0
            for end, size in ends
        )
        if not (low.key_vectors is None and low.value_vectors is None):
            if seen.shape[1] > 1:
                seen = seen.unflatten(1, (low.k.shape[1], low.group)).any(2)
            unseen = ~seen.any(0).t()
            silenced = {id(x): x.silenced(unseen) for x in (low.key_vectors, low.value_vectors) if x is not None}
            vectors = [silenced.get(id(x)) for x in (low.key_vectors, low.value_vectors)]  # one stays one
            low = replace(low, key_vectors=vectors[0], value_vectors=vectors[1])
    q, k, v = silence(low.q, low.k, low.v, queries, keys)
    return replace(low, q=q, k=k, v=v)


def _is_harmless(low: Lowered) -> bool:
    """Whether what is hidden does no harm with a weight of 0, nor a gradient of 0.

    Compiled code could not know, a GPU would be waited for, and a score of one's own may do anything.
    """
    inputs = (low.q, low.k, low.v)
    known = low.q.is_cpu and not any(watched(x) for x in inputs)
    return known and low.score.fused and all(is_tame(x) for x in inputs)


def is_tame(x: Tensor) -> bool:
    """Whether no product of two such numbers can be inf or NaN, so that -inf added to it hides it."""
    return float(torch.linalg.vector_norm(x.detach())) < 1e15  # NaN is not below anything


def silence(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zeroes the rows of q, k and v that take part in nothing.

    Args:
        q: ``[B, Hq, Nq, D]``.
        k: ``[B, Hkv, Nk, D]``.
        v: ``[B, Hkv, Nk, Dv]``.
        queries: ``[1 | B, 1 | Hq, Nq]`` bool, True = takes part.
        keys: ``[1 | B, 1 | Hq, Nk]``; of either the last size may be 1, too.
    """
    if keys.shape[1] > 1:  # a key is read if any query head of its group reads it
        keys = keys.unflatten(1, (k.shape[1], q.shape[1] // k.shape[1])).any(2)
    return _silence(q, queries), _silence(k, keys), _silence(v, keys)


def _silence(x: Tensor, seen: Tensor | None) -> Tensor:
    """x ``[B, H, N, D]`` where ``seen [1 | B, 1 | H, N]``, else 0; None = everywhere."""
    # Not masked_fill, which lays heads out anew: kernels are made for a node's heads next to each other.
    return x if seen is None else torch.where(seen[..., None], x, x.new_zeros(()))


def build(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    mask: Mask,
    bias: Bias,
    score: Score,
    scale: float | None,
    dropout_p: float,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    *,
    needs_lse: bool = True,
) -> Problem:
    """Checks a call before any work is done, and freezes it; without v, for its weights alone.

    Raises:
        TypeError: Where a thing of another kind is wanted.
        ValueError: Where sizes, devices, dtypes or numbers do not fit; each message names argument, value and remedy.
    """
    _check_tensors(q, k, k if v is None else v)
    if scale is not None and (isinstance(scale, (bool, Tensor)) or not isinstance(scale, (int, float))):
        raise TypeError(f"scale is a {type(scale).__name__}; give a number, or None for the score's own")
    if scale is not None and not -torch.inf < scale < torch.inf:
        raise ValueError(f"scale is {scale}; it must be finite")
    if isinstance(dropout_p, (bool, Tensor)) or not isinstance(dropout_p, (int, float)):
        raise TypeError(f"dropout_p is a {type(dropout_p).__name__}; give a number in [0, 1]")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p is {dropout_p}; it is a probability in [0, 1]")
    batch, num_heads, num_queries, head_dim = q.shape
    _, num_kv_heads, num_keys, _ = k.shape
    start = 0 if mask.counts_from_zero else num_keys - num_queries
    graph = mask.graph
    shape = Shape(
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        num_queries=num_queries,
        num_keys=num_keys,
        head_dim=head_dim,
        value_dim=None if v is None else v.shape[3],
        offset=start if q_positions is None and k_positions is None else None,
        num_edges=None if graph is None else graph.num_edges,
        device=q.device,
    )
    if shape.offset is None:
        q_positions = _positions("q_positions", q_positions, num_queries, start, shape)
        k_positions = _positions("k_positions", k_positions, num_keys, 0, shape)
    mask.check(shape)
    for term in bias.terms:
        term.check(shape)
    score.check(shape)
    return Problem(
        q=q,
        k=k,
        v=k if v is None else v,
        mask=mask,
        bias=bias,
        score=score,
        scale=score.scale(head_dim) if scale is None else float(scale),
        dropout_p=float(dropout_p),
        q_given=q_positions,
        k_given=k_positions,
        shape=shape,
        candidates=mask.candidates(shape),
        needs_lse=needs_lse or score.sink is not None,  # a sink is a share of exp(lse)
    )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; give a tensor {LAYOUT[name]}")
        if x.is_nested or x.layout != torch.strided:
            raise TypeError(f"{name} is nested or sparse; give a dense {LAYOUT[name]}; ragged: pad, mask=Padding")
        if not x.is_floating_point():
            raise TypeError(f"{name} is {describe(x)}; attention computes with floats: convert it, e.g. {name}.float()")
        if x.dim() != 4:
            hint = " (node-major [N, H, D]: x.transpose(0, 1)[None], or graph_attention)" if x.dim() == 3 else ""
            raise ValueError(f"{name} has shape {list(x.shape)}; it must be {LAYOUT[name]}{hint}")
    batch, heads, _, head_dim = q.shape
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(f"q is {q.dtype} but {name} is {x.dtype}; convert them to one dtype")
        if x.device != q.device:
            raise ValueError(f"q is on {q.device} but {name} is on {x.device}; move them to one device")
        if x.shape[0] != batch:
            raise ValueError(
                f"q has batch size {batch} but {name} has {x.shape[0]}; expand {name} to q's batch "
                f"({name}.expand({batch}, -1, -1, -1) copies nothing)"
            )
    _, kv_heads, num_keys, key_dim = k.shape
    _, value_heads, num_values, _ = v.shape
    if kv_heads != value_heads:
        raise ValueError(f"k has {kv_heads} heads but v has {value_heads}; both must be Hkv")
    if num_keys != num_values:
        raise ValueError(f"k has {num_keys} rows but v has {num_values}; each key needs its value")
    if head_dim != key_dim:
        raise ValueError(f"q has head size {head_dim} but k has {key_dim}; both must be D (v may differ)")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"q has {heads} heads, which is no multiple of k's {kv_heads}; each key head serves the same number "
            f"of query heads (layout {LAYOUT['q']}: are heads and tokens swapped? then transpose(1, 2))"
        )


def _positions(name: str, given: Tensor | None, size: int, start: int, shape: Shape) -> Tensor:
    """Positions ``[1 | B, size]``: the given ones, checked, or start, start + 1, ..."""
    if given is None:
        return counted(size, start, shape.device)
    check_integers(name, given, "give integer positions, [N] or [B, N]")
    if given.device != shape.device:
        raise ValueError(f"{name} is on {given.device}, but q is on {shape.device}; move it")
    batch = given.shape[0] if given.dim() == 2 else 1
    if given.dim() not in (1, 2) or given.shape[-1] != size or not fits(batch, shape.batch):
        raise ValueError(
            f"{name} has shape {list(given.shape)}; it must be [{size}] or [B, N] = [{shape.batch}, {size}]"
        )
    return given.long() if given.dim() == 2 else given.long()[None]
