"""The pairs that a mask names, listed: pair lists, and their compressed rows with the transpose.

A query is a row and a key is a column. A *pair list* holds pairs in an order of its own (for a graph: the caller's edge
order), and its number in that order is a pair's id. *Rows* are the same pairs sorted by query, and again by key, as
fused kernels read them. Checks that depend on values live inside custom operators, so that ``torch.compile`` traces
through without a break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

LIMIT = 2**31 - 1
"""Most pairs, queries or keys of one list: rows hold 32-bit indices."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Pairs compressed by query, and transposed by key.

    ``col[indptr[r, i]:indptr[r, i + 1]]`` are the keys of query i, and ``edge`` holds the ids of the same pairs;
    ``t_row`` and ``t_edge`` are the queries and ids of a key. R is 1 (one structure for the whole batch) or B.

    Args:
        indptr: ``[R, Nq + 1]`` int64, absolute offsets into ``col`` and ``edge``.
        col: ``[E]`` int32, keys.
        edge: ``[E]`` int32, ids.
        t_indptr: ``[R, Nk + 1]`` int64.
        t_row: ``[E]`` int32, queries.
        t_edge: ``[E]`` int32, ids.
    """

    indptr: Tensor
    col: Tensor
    edge: Tensor
    t_indptr: Tensor
    t_row: Tensor
    t_edge: Tensor


@dataclass(eq=False)
class PairList:
    """Pairs (query[e], key[e]) in the order of their ids.

    Args:
        query: ``[E]`` int64, checked to lie in 0..num_queries-1.
        key: ``[E]`` int64, checked to lie in 0..num_keys-1.
        num_queries: Nq.
        num_keys: Nk.
        edges: Whether the pairs are a graph's edges, in the caller's order, parallel edges included.
    """

    query: Tensor
    key: Tensor
    num_queries: int
    num_keys: int
    edges: bool = False
    _rows: Rows | None = field(default=None, repr=False)

    @property
    def num_pairs(self) -> int:
        """E."""
        return self.query.shape[0]

    def rows(self) -> Rows:
        """The same pairs compressed; sorted once, outside of compiled code, and kept."""
        if self._rows is not None:
            return self._rows
        if torch.compiler.is_compiling():
            return Rows(*compress(self.query, self.key, self.num_queries, self.num_keys))
        with torch.inference_mode(False):  # what is kept may take part in training later
            self._rows = Rows(*compress(self.query, self.key, self.num_queries, self.num_keys))
        return self._rows


@dataclass(frozen=True)
class Band:
    """All pairs with ``-left <= j - (i + offset) <= right``: listed only when somebody asks for the list.

    Args:
        num_queries: Nq.
        num_keys: Nk.
        offset: Position of query 0, counted from key 0.
        left: Keys before the query's position.
        right: Keys after it.
        device: Where the list is made.
    """

    num_queries: int
    num_keys: int
    offset: int
    left: int
    right: int
    device: torch.device

    @property
    def num_pairs(self) -> int:
        """E in closed form, so that a compiler knows the size without running anything."""
        if self.left + self.right < 0:  # two windows that do not meet
            return 0
        first = _clamped_sum(self.offset + self.right + 1, self.num_queries, self.num_keys)
        return first - _clamped_sum(self.offset - self.left, self.num_queries, self.num_keys)

    def list(self) -> PairList:
        """The pairs in row order. Outside of compiled code the last few lists are kept."""
        if torch.compiler.is_compiling():
            return self._list()
        return _recent(("band", self), self._list)

    def _list(self) -> PairList:
        total = self.num_pairs
        counts, key = band_pairs(
            self.num_queries, self.num_keys, self.offset, self.left, self.right, total, self.device
        )
        query = torch.arange(self.num_queries, device=self.device).repeat_interleave(counts, output_size=total)
        return PairList(query, key, self.num_queries, self.num_keys)


def _clamped_sum(start: int, count: int, top: int) -> int:
    """Sum of min(max(y, 0), top) for y = start, ..., start + count - 1."""

    def upto(x: int) -> int:  # the same sum for y <= x
        inner = torch.sym_min(torch.sym_max(x, 0), top)
        return inner * (inner + 1) // 2 + (torch.sym_max(x, 0) - inner) * top  # type: ignore[no-any-return]

    return upto(start + count - 1) - upto(start - 1)


_KEPT: dict[object, PairList] = {}
_KEPT_LISTS = 8


def _recent(key: object, make: Callable[[], PairList]) -> PairList:
    """A small cache, least recently used first: layers of one model share their window's list."""
    found = _KEPT.pop(key, None)
    if found is None:
        with torch.inference_mode(False):  # what is kept may take part in training later
            found = make()
    _KEPT[key] = found
    while len(_KEPT) > _KEPT_LISTS:
        _KEPT.pop(next(iter(_KEPT)), None)
    return found


def coded(query: Tensor, key: Tensor, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor]:
    """Codes ``i * Nk + j`` in rising order, with a greater one at the end ``[E + 1]``, and their order ``[E]``.

    With the sentinel ``codes[searchsorted(codes, wanted)] == wanted`` says which pairs are there, even of none.
    """
    codes, order = torch.sort(query * num_keys + key)
    return torch.cat([codes, codes.new_full((1,), num_queries * num_keys)]), order


def unique_pairs(lists: list[PairList]) -> PairList:
    """The union of several lists as a set of pairs, in row order; parallel pairs become one."""
    num_queries, num_keys = lists[0].num_queries, lists[0].num_keys
    codes = torch.unique(torch.cat([pairs.query * num_keys + pairs.key for pairs in lists]))
    width = max(num_keys, 1)  # an empty list still divides
    return PairList(codes // width, codes % width, num_queries, num_keys)


@torch.library.custom_op("unified_attn::edge_ends", mutates_args=())
def edge_ends(edge_index: Tensor, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor]:
    """Splits an edge index into (query, key), ``[E]`` int64 each, after a range check.

    Args:
        edge_index: ``[2, E]``, row 0 = source = key, row 1 = target = query.
        num_queries: Nq.
        num_keys: Nk.

    Raises:
        ValueError: If an index lies outside; names the row, the edge, the value and the size.
    """
    if max(edge_index.shape[1], num_queries, num_keys) > LIMIT:
        raise ValueError(
            f"{edge_index.shape[1]} edges, {num_queries} queries, {num_keys} keys: a graph has at most {LIMIT} of each"
        )
    for row, (side, size) in enumerate((("source = key", num_keys), ("target = query", num_queries))):
        ends = edge_index[row].to(torch.int64)  # unsigned integers know no minimum
        if ends.numel() and (int(ends.min()) < 0 or int(ends.max()) >= size):
            edge = int(((ends < 0) | (ends >= size)).nonzero()[0])
            raise ValueError(
                f"edge_index row {row} ({side}) holds {int(ends[edge])} at edge {edge}, but there are {size} "
                f"{'keys' if row == 0 else 'queries'}: indices run from 0 to {size - 1}"
                f"{'' if num_queries == num_keys else ' (sizes: num_keys of sources, num_queries of targets)'}"
            )
    return edge_index[1].to(torch.int64, copy=True), edge_index[0].to(torch.int64, copy=True)


@edge_ends.register_fake
def _(edge_index: Tensor, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor]:
    size = edge_index.shape[1]
    return (edge_index.new_empty(size, dtype=torch.int64), edge_index.new_empty(size, dtype=torch.int64))


@torch.library.custom_op("unified_attn::band_pairs", mutates_args=())
def band_pairs(
    num_queries: int, num_keys: int, offset: int, left: int, right: int, total: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Keys a query (``[Nq]`` int64) and the keys themselves (``[total]`` int64) of a band, row by row."""
    position = torch.arange(num_queries, device=device) + offset
    low = (position - left).clamp(0, num_keys)
    counts = ((position + right + 1).clamp(0, num_keys) - low).clamp_min(0)
    start = low - (counts.cumsum(0) - counts)  # key = start of its row + number of the pair
    return counts, start.repeat_interleave(counts, output_size=total) + torch.arange(total, device=device)


@band_pairs.register_fake
def _(
    num_queries: int, num_keys: int, offset: int, left: int, right: int, total: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    counts = torch.empty(num_queries, dtype=torch.int64, device=device)
    return counts, torch.empty(total, dtype=torch.int64, device=device)


@torch.library.custom_op("unified_attn::compress", mutates_args=())
def compress(
    query: Tensor, key: Tensor, num_queries: int, num_keys: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The six tensors of :class:`Rows` (R = 1) for checked pairs; equal ends keep the order of their ids."""
    return (*_sorted(query, key, num_queries), *_sorted(key, query, num_keys))


def _sorted(major: Tensor, minor: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    order = torch.argsort(major, stable=True)
    indptr = torch.zeros(size + 1, dtype=torch.int64, device=major.device)
    indptr[1:] = torch.bincount(major, minlength=size).cumsum(0)
    return indptr[None], minor[order].to(torch.int32), order.to(torch.int32)


@compress.register_kernel("cpu")
def _(
    query: Tensor, key: Tensor, num_queries: int, num_keys: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    try:
        from unified_attn._counting_sort import counting_sort  # needs numba: imported at the first use
    except Exception:  # without it, or with a broken one, the other back ends still run
        return (*_sorted(query, key, num_queries), *_sorted(key, query, num_keys))

    def one_way(major: Tensor, minor: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        indptr, other, order = counting_sort(major.numpy(), minor.numpy(), size)
        return torch.from_numpy(indptr)[None], torch.from_numpy(other), torch.from_numpy(order)

    return (*one_way(query, key, num_queries), *one_way(key, query, num_keys))


@compress.register_fake
def _(
    query: Tensor, key: Tensor, num_queries: int, num_keys: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def one_way(size: int) -> tuple[Tensor, Tensor, Tensor]:
        narrow = [query.new_empty(query.shape[0], dtype=torch.int32) for _ in range(2)]
        return query.new_empty((1, size + 1), dtype=torch.int64), narrow[0], narrow[1]

    return (*one_way(num_queries), *one_way(num_keys))
