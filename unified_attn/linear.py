"""Linear attention: weights are inner products of features, so sums over the keys are taken before the queries come."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from unified_attn._autocast import without_autocast
from unified_attn.biases.learned import codes_within
from unified_attn.kernels.pair_sum import pair_sum
from unified_attn.masks import Causal, Mask, Padding
from unified_attn.masks.base import Prefix
from unified_attn.operator import _problem
from unified_attn.pairs import Shape, check_integers, describe
from unified_attn.problem import Problem

FeatureMap = Callable[[Tensor], Tensor]

_CHUNK = 64  # queries that meet their own keys in a table; what came before them is one sum


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, the feature map of Katharopoulos et al. 2020, Eq. 7: x + 1 above 0, exp(x) below.

    Example:
        >>> elu_plus_one(torch.tensor([1.0, 0.0, -30.0]))  # 1 + (exp(-30) - 1) would be rounded to 0
        tensor([2.0000e+00, 1.0000e+00, 9.3576e-14])
    """
    return torch.where(x > 0, x + 1.0, x.clamp_max(0.0).exp())


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | Tensor | None = None, feature_map: FeatureMap = elu_plus_one
) -> Tensor:
    """Attention whose weights are inner products of features, without a softmax, in time linear in the tokens.

        out_i = sum_j <phi(q_i), phi(k_j)> v_j / sum_j <phi(q_i), phi(k_j)>,   j in N(i)

    A query whose weights sum to 0 (it has no key) gets 0. Keys that nobody may attend may hold anything, NaN included.

    Args:
        q: Queries ``[B, Hq, Nq, D]``, any strides.
        k: Keys ``[B, Hkv, Nk, D]``; Hq is a multiple of Hkv, and query head h reads key head ``h // (Hq // Hkv)``.
        v: Values ``[B, Hkv, Nk, Dv]``.
        mask: What :func:`~unified_attn.attention` takes, if it is ``Full``, ``Causal``, a ``Window`` without a left
            side, ``Padding`` or an ``&`` of these; or if it lists its pairs, as a ``Graph``, a ``Window`` with two
            sides or ``Documents`` do, alone or with ``&``.
        feature_map: phi, ``[..., N, D]`` to ``[..., N, M]``, applied to q and to k in the dtype that is computed in.
            Features must not be negative: weights would cancel.

    Returns:
        ``[B, Hq, Nq, Dv]`` in q's dtype, computed in float32 (float64 for float64 inputs).

    Raises:
        TypeError: As :func:`~unified_attn.attention`, or if the feature map returns no floats.
        ValueError: As :func:`~unified_attn.attention`; for any other mask; if features are negative (tested outside of
            compiled code) or of a wrong shape.

    Cost: O(N M Dv) time, O(N (M + Dv)) memory; causal O(N M Dv + 64 N (M + Dv)) and O(N (M + Dv + 64) + N M Dv / 64),
    in chunks of 64 tokens; listed O(E (M + Dv)) and O(N (M + Dv)), with no tensor of edges x channels, forward or
    backward. Differentiable to any order in q, k, v and what the feature map holds.

    Reference: Katharopoulos et al., Transformers are RNNs, ICML 2020, arXiv 2006.16236, Eq. 5, 8 and 9.

    Example:
        The second query sees two keys, weighted by <1, phi(k)> = 1 and 3:

        >>> import torch
        >>> from unified_attn import Causal
        >>> q, k = torch.zeros(1, 1, 2, 1), torch.tensor([0.0, 2.0]).reshape(1, 1, 2, 1)
        >>> linear_attention(q, k, torch.tensor([4.0, 8.0]).reshape(1, 1, 2, 1), mask=Causal()).flatten()
        tensor([4., 7.])
    """
    _check_map(feature_map)
    problem = _problem(q, k, v, mask, None, None, None, 0.0, None, None)
    prefix = problem.mask.prefix(problem.shape)
    if prefix is None and problem.candidates is None:
        raise ValueError(
            f"linear_attention takes no mask {problem.mask!r}: it takes Full, Causal, Window(None, right), Padding "
            f"and their &, or a mask that lists its pairs (a Graph, a Window with two sides, Documents, Longformer, "
            f"..., alone or with &)"
        )
    with without_autocast(q.device):
        sums = _over_pairs(problem, feature_map) if prefix is None else _over_prefix(problem, prefix, feature_map)[0]
        return _divided(sums).to(q.dtype)


class LinearState:
    """Causal linear attention a token, or a block of tokens, at a time: all that it keeps of the past is one matrix.

        S = sum_j phi(k_j) [v_j, 1]^T,   out_i = phi(q_i) S, divided by its last coordinate

    Args:
        feature_map: As in :func:`linear_attention`.

    Attributes:
        sums: S, ``[B, Hkv, M, Dv + 1]`` in float32 (float64 for float64 inputs); None before the first step.
        length: Tokens seen.

    Reference: Katharopoulos et al., 2020, arXiv 2006.16236, Eq. 16 to 20.

    Example:
        >>> import torch
        >>> from unified_attn import Causal
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
        >>> state = LinearState()
        >>> parts = [state.step(q[:, :, s], k[:, :, s], v[:, :, s]) for s in (slice(0, 3), slice(3, 4), slice(4, 5))]
        >>> bool(torch.allclose(torch.cat(parts, 2), linear_attention(q, k, v, mask=Causal()), atol=1e-6))
        True
        >>> state.length, list(state.sums.shape)
        (5, [1, 2, 4, 5])
    """

    def __init__(self, feature_map: FeatureMap = elu_plus_one) -> None:
        _check_map(feature_map)
        self.feature_map = feature_map
        self.sums: Tensor | None = None
        self.length = 0

    def step(self, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        """The output of the next n tokens, each of which sees itself and all before it.

        Args:
            q: ``[B, Hq, n, D]``.
            k: ``[B, Hkv, n, D]``.
            v: ``[B, Hkv, n, Dv]``.
            keep: ``[B, n]`` bool, True = a real token; a padded one leaves no trace in the state. Default all.

        Returns:
            ``[B, Hq, n, Dv]`` in q's dtype.

        Raises:
            TypeError: As :func:`linear_attention`.
            ValueError: As :func:`linear_attention`, or if sizes or dtype are not those of the steps before.
        """
        mask = Causal() if keep is None else Causal() & Padding(keep)
        problem = _problem(q, k, v, mask, None, None, None, 0.0, None, None)
        shape, prefix = problem.shape, mask.prefix(problem.shape)
        if prefix is None or shape.num_queries != shape.num_keys:
            raise ValueError(f"q has {shape.num_queries} tokens but k has {shape.num_keys}; a step takes the same n")
        if self.sums is not None:
            batch, heads, _, width = self.sums.shape
            got, had = (shape.batch, shape.num_kv_heads, v.shape[3]), (batch, heads, width - 1)
            if got != had or problem.dtype != self.sums.dtype or q.device != self.sums.device:
                raise ValueError(
                    f"this step has B, Hkv, Dv = {got}, computed in {problem.dtype} on {q.device}; the steps before "
                    f"had {had}, {self.sums.dtype} on {self.sums.device}: keep to them, or reset() for a new sequence"
                )
        with without_autocast(q.device):
            sums, self.sums = _over_prefix(problem, prefix, self.feature_map, self.sums)
            self.length += shape.num_queries
            return _divided(sums).to(q.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self.sums is None else self.sums.numel() * self.sums.element_size()

    def reorder(self, index: Tensor) -> None:
        """Makes sequence n of the batch what sequence ``index[n]`` was, for beam search.

        Raises:
            TypeError: If ``index`` holds no integers.
            ValueError: If it has other dimensions, or one is no sequence of the batch.
        """
        check_integers("index", index, "give the number of a sequence for each place in the batch, [B]")
        if self.sums is not None:
            if index.dim() != 1 or index.device != self.sums.device:
                raise ValueError(f"index is {describe(index)} on {index.device}; it must be [B] on {self.sums.device}")
            self.sums = self.sums.index_select(0, codes_within("index", index, 0, self.sums.shape[0] - 1))

    def reset(self) -> None:
        """Forgets everything."""
        self.sums, self.length = None, 0

    def __repr__(self) -> str:
        sums = "empty" if self.sums is None else f"sums={list(self.sums.shape)}"
        return f"LinearState({sums}, length={self.length})"


def _check_map(feature_map: object) -> None:
    if not callable(feature_map):
        raise TypeError(f"feature_map is a {type(feature_map).__name__}; give a function of [..., N, D]")


def _divided(sums: Tensor) -> Tensor:
    """Sums of values by the sum of weights, which is their last coordinate; 0 where that is 0."""
    total = sums[..., -1:]
    # Times the inverse: the derivative of a quotient makes two more tensors of the output's size.
    return sums[..., :-1] * torch.where(total == 0.0, 1.0, total).reciprocal()


def _with_one(v: Tensor) -> Tensor:
    """Values with a coordinate of 1, so that their sums hold the sum of weights too."""
    return pad(v, (0, 1), value=1.0)


def _features(name: str, x: Tensor, feature_map: FeatureMap) -> Tensor:
    """phi(x) ``[B, H, N, M]``, checked: a feature map may be anybody's."""
    phi = feature_map(x)
    if feature_map is elu_plus_one:
        return phi
    if not isinstance(phi, Tensor) or not phi.is_floating_point():
        got = describe(phi) if isinstance(phi, Tensor) else type(phi).__name__
        raise TypeError(f"feature_map of {name} returned {got}; it must return floats")
    if phi.dim() != 4 or phi.shape[:3] != x.shape[:3]:
        raise ValueError(
            f"feature_map of {name} returned shape {list(phi.shape)}; for {list(x.shape)} it must be "
            f"{[*x.shape[:3]]} and features"
        )
    if not torch.compiler.is_compiling() and bool((phi < 0).any()):
        raise ValueError(
            f"feature_map of {name} returned {float(phi.detach().nan_to_num().min()):g}; features must not be "
            f"negative, for weights of both signs may sum to 0: e.g. relu, exp or elu + 1"
        )
    return phi.to(x.dtype)


def _check_widths(q: Tensor, k: Tensor) -> None:
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"feature_map returned {q.shape[-1]} features of q but {k.shape[-1]} of k; both must be M")


def _over_pairs(problem: Problem, feature_map: FeatureMap) -> Tensor:
    """Sums ``[B, Hq, Nq, Dv + 1]`` over the pairs that the mask lists."""
    low = problem.listed()
    q, k = _features("q", low.q, feature_map), _features("k", low.k, feature_map)
    _check_widths(q, k)
    heads = (low.k.shape[1], low.group)
    visible = low.add != -torch.inf if low.add is not None and low.hides else None
    if visible is not None:
        visible = visible.unflatten(1, heads if visible.shape[1] > 1 else (1, 1))
    # Tokens first, as pair_sum reads them: nothing is copied then.
    v = _with_one(low.v.movedim(2, 0)).movedim(0, 2)
    k, v = (x[:, :, None].expand(-1, -1, low.group, -1, -1) for x in (k, v))
    pairs = low.pairs.query.flatten(), low.pairs.key.flatten()
    sums: Tensor = pair_sum(q.unflatten(1, heads), k, v, *pairs, visible)
    return sums.flatten(1, 2)


def _over_prefix(
    problem: Problem, prefix: Prefix, feature_map: FeatureMap, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums ``[B, Hq, Nq, Dv + 1]`` over the keys up to each query's limit, and over all keys ``[B, Hkv, M, Dv + 1]``.

    Args:
        problem: The call.
        prefix: Its mask.
        feature_map: phi.
        start: Sums over keys that came before, which every query sees.
    """
    shape = problem.shape
    q, k, v = (x.to(problem.dtype) for x in (problem.q, problem.k, problem.v))
    hidden = _hidden(prefix, shape, start is not None)
    if hidden is None:
        q, k, v = _features("q", q, feature_map), _features("k", k, feature_map), _with_one(v)
    else:  # before the map, for what they hold may be NaN, and after it, for the features of 0 are not 0
        no_query, no_key = (side[:, None, :, None] for side in hidden)
        q = _features("q", q.masked_fill(no_query, 0.0), feature_map).masked_fill(no_query, 0.0)
        k = _features("k", k.masked_fill(no_key, 0.0), feature_map).masked_fill(no_key, 0.0)
        v = _with_one(v.masked_fill(no_key, 0.0))
    _check_widths(q, k)
    if start is not None and start.shape[2] != k.shape[-1]:
        raise ValueError(
            f"this step has M = {k.shape[-1]} features; the steps before had {start.shape[2]}: keep to them, or "
            f"reset() for a new sequence"
        )
    q = q.unflatten(1, (k.shape[1], q.shape[1] // k.shape[1]))
    if prefix.right is None or shape.offset is None:
        total = k.mT @ v if start is None else k.mT @ v + start
        return (q @ total[:, :, None]).flatten(1, 2), total
    ahead = shape.offset + prefix.right  # query i sees keys 0..i + ahead
    seen = min(max(ahead, 0), shape.num_keys)  # by all queries
    total = k[:, :, :seen].mT @ v[:, :, :seen]
    sums, total = _in_chunks(
        q[:, :, :, max(-ahead, 0) :], k[:, :, seen:], v[:, :, seen:], total if start is None else total + start
    )
    return pad(sums, (0, 0, shape.num_queries - sums.shape[3], 0)).flatten(1, 2), total


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over keys 0..i and the start for each query i, ``[B, Hkv, G, Nq, Dv + 1]``; and over all Nq first keys.

    Within a chunk a table of queries and keys, below its diagonal; of the chunks before it one sum, S.
    """
    queries = q.shape[3]
    chunks = -(-queries // _CHUNK)
    length = chunks * _CHUNK
    q = pad(q, (0, 0, 0, length - queries)).unflatten(3, (chunks, _CHUNK))
    # Keys beyond the last query are cut off, missing ones have no features.
    k, v = (pad(x, (0, 0, 0, length - x.shape[2])).unflatten(2, (chunks, _CHUNK)) for x in (k, v))
    totals = torch.cat([start[:, :, None], k.mT @ v], dim=2).cumsum(2)
    own = (q @ k[:, :, None].mT).tril() @ v[:, :, None]
    sums = q @ totals[:, :, None, :-1] + own
    return sums.flatten(3, 4)[:, :, :, :queries], totals[:, :, -1]


def _hidden(prefix: Prefix, shape: Shape, started: bool) -> tuple[Tensor, Tensor] | None:
    """Queries that see no key ``[1 | B, Nq]`` and keys that no query sees ``[1 | B, Nk]``; None if there are none."""
    i, j = (torch.arange(size, device=shape.device)[None] for size in (shape.num_queries, shape.num_keys))
    limit = torch.full_like(i, shape.num_keys)
    whole = prefix.queries is None and prefix.keys is None and shape.num_queries > 0 and shape.num_keys > 0
    if prefix.right is not None and shape.offset is not None:
        ahead = shape.offset + prefix.right
        if whole and 0 <= ahead == shape.num_keys - shape.num_queries:
            return None
        limit = i + ahead
    elif whole:
        return None
    queries = torch.ones_like(i, dtype=torch.bool) if prefix.queries is None else prefix.queries
    keys = torch.ones_like(j, dtype=torch.bool) if prefix.keys is None else prefix.keys
    # One more entry, so that none is a maximum too.
    first = pad(torch.where(keys, j, shape.num_keys), (0, 1), value=shape.num_keys).amin(1, keepdim=True)
    last = pad(torch.where(queries, limit, -1), (0, 1), value=-1).amax(1, keepdim=True)
    some = queries if started else queries & (first <= limit) & (first < shape.num_keys)
    return ~some, ~(keys & (j <= last))
