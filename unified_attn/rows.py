"""The pairs that a mask names, listed: pair lists, and their compressed rows with the transpose.

A query is a row and a key is a column. A *pair list* holds pairs in an order of its own (for a graph: the caller's edge
order), and its number in that order is a pair's id. *Rows* are the same pairs sorted by query, and again by key, as
fused kernels read them. Checks that depend on values live inside custom operators, so that ``torch.compile`` traces
through without a break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from unified_attn._watched import watched

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


Met = tuple[Tensor | None, Tensor | None]
"""Which queries, ``[Nq]`` bool, and which keys, ``[Nk]``, are in a pair; None = all of them."""


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
    _met: Met | None = field(default=None, repr=False)

    @property
    def num_pairs(self) -> int:
        """E."""
        return self.query.shape[0]

    def met(self) -> Met:
        """Which queries and keys are in a pair; looked up once, where numbers are known."""
        if watched(self.query) or self.query.is_meta:
            return _met(self)
        if self._met is None:
            with torch.inference_mode(False):  # what is kept may take part in training later
                self._met = _met(self)
        return self._met

    def list(self) -> PairList:
        """Itself: what lists pairs on demand is asked in the same way."""
        return self

    def rows(self) -> Rows:
        """The same pairs compressed; sorted once, outside of compiled code, and kept."""
        if self._rows is not None:
            return self._rows
        if torch.compiler.is_compiling():
            return Rows(*compress(self.query, self.key, self.num_queries, self.num_keys))
        with torch.inference_mode(False):  # what is kept may take part in training later
            self._rows = Rows(*compress(self.query, self.key, self.num_queries, self.num_keys))
        return self._rows


@dataclass(eq=False)
class RowList:
    """Pairs in row order, as their rows; query and key of each pair are written out only if somebody asks.

    Args:
        indptr: ``[Nq + 1]`` int64: query i has the pairs ``indptr[i]`` up to ``indptr[i + 1]``.
        col: ``[E]`` int32, keys, checked to lie in 0..num_keys-1.
        num_keys: Nk.
    """

    indptr: Tensor
    col: Tensor
    num_keys: int
    _query: Tensor | None = field(default=None, repr=False)
    _key: Tensor | None = field(default=None, repr=False)
    _rows: Rows | None = field(default=None, repr=False)

    def met(self) -> Met:
        """Which queries and keys are in a pair."""
        return _met(self)

    @property
    def num_pairs(self) -> int:
        """E."""
        return self.col.shape[0]

    @property
    def num_queries(self) -> int:
        """Nq."""
        return self.indptr.shape[0] - 1

    @property
    def edges(self) -> bool:
        """Whether the pairs are a graph's edges: no."""
        return False

    @property
    def query(self) -> Tensor:
        """``[E]`` int64."""
        if torch.compiler.is_compiling():
            return self._queries()
        if self._query is None:
            with torch.inference_mode(False):  # what is kept may take part in training later
                self._query = self._queries()
        return self._query

    def _queries(self) -> Tensor:
        every = torch.arange(self.num_queries, device=self.col.device)
        return every.repeat_interleave(self.indptr.diff(), output_size=self.num_pairs)

    @property
    def key(self) -> Tensor:
        """``[E]`` int64."""
        if torch.compiler.is_compiling():
            return self.col.long()
        if self._key is None:
            with torch.inference_mode(False):
                self._key = self.col.long()
        return self._key

    def list(self) -> RowList:
        """Itself."""
        return self

    def rows(self) -> Rows:
        """The same pairs compressed, which takes a transpose; kept outside of compiled code."""
        if torch.compiler.is_compiling():
            return self._compressed()
        if self._rows is None:
            with torch.inference_mode(False):
                self._rows = self._compressed()
        return self._rows

    def _compressed(self) -> Rows:
        edge = torch.arange(self.num_pairs, dtype=torch.int32, device=self.col.device)
        return Rows(self.indptr[None], self.col, edge, *transpose_rows(self.indptr, self.col, self.num_keys))


def _met(pairs: Listed) -> Met:
    ends = ((pairs.query, pairs.num_queries), (pairs.key, pairs.num_keys))
    queries, keys = (
        torch.zeros(size, dtype=torch.bool, device=end.device).index_fill(0, end, True) for end, size in ends
    )
    if watched(queries) or queries.is_meta:
        return queries, keys
    return None if bool(queries.all()) else queries, None if bool(keys.all()) else keys


Listed = PairList | RowList
"""A list of pairs: in an order of its own, or in row order."""


@dataclass(eq=False)
class Listing:
    """Pairs that are listed only when somebody asks, and then once.

    Args:
        num_pairs: E, or an upper bound that is known without the list.
        make: Makes the list.
    """

    num_pairs: int
    make: Callable[[], Listed]
    _list: Listed | None = field(default=None, repr=False)

    def list(self) -> Listed:
        """The pairs; kept outside of compiled code."""
        if torch.compiler.is_compiling():
            return self.make()
        if self._list is None:
            with torch.inference_mode(False):  # what is kept may take part in training later
                self._list = self.make()
        return self._list


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

    def list(self) -> RowList:
        """The pairs in row order. Outside of compiled code the last few lists are kept."""
        return recent(KEPT, self, self._list)

    def _list(self) -> RowList:
        low, high = self.ends()
        return list_runs(low[:, None], (high - low)[:, None], self.num_keys, total=self.num_pairs)

    def ends(self) -> tuple[Tensor, Tensor]:
        """First key of each query and the one after its last, ``[Nq]`` int64 in 0..Nk; equal where there is none."""
        position = torch.arange(self.num_queries, device=self.device) + self.offset
        low = (position - self.left).clamp(0, self.num_keys)
        return low, torch.maximum((position + self.right + 1).clamp(0, self.num_keys), low)


def _clamped_sum(start: int, count: int, top: int) -> int:
    """Sum of min(max(y, 0), top) for y = start, ..., start + count - 1."""

    def upto(x: int) -> int:  # the same sum for y <= x
        inner = torch.sym_min(torch.sym_max(x, 0), top)
        return inner * (inner + 1) // 2 + (torch.sym_max(x, 0) - inner) * top  # type: ignore[no-any-return]

    return upto(start + count - 1) - upto(start - 1)


Kept = TypeVar("Kept")
KEPT: dict[object, Any] = {}
"""What rules list, by rule and sizes: layers of one model share the list of their window."""
_KEPT_LISTS = 8


def recent(kept: dict[object, Any], key: object, make: Callable[[], Kept]) -> Kept:
    """A small cache, least recently used first; compiled code, which would keep tensors of its trace, makes anew."""
    if torch.compiler.is_compiling():
        return make()
    found: Kept | None = kept.pop(key, None)
    if found is None:
        with torch.inference_mode(False):  # what is kept may take part in training later
            found = make()
    kept[key] = found
    while len(kept) > _KEPT_LISTS:
        kept.pop(next(iter(kept)), None)
    return found


def pairs_of_values(count: Tensor, num_queries: int, num_keys: int) -> int:
    """How many pairs a list holds, where values of a tensor decide: the sum of ``count``.

    A compiler does not know it while it traces, and takes a quarter of all pairs: the largest list that is used by
    default, and one that any smaller list which it does know is preferred to.
    """
    return num_queries * num_keys // 4 if torch.compiler.is_compiling() else int(count.sum())


def list_runs(
    start: Tensor, count: Tensor, num_keys: int, table: Tensor | None = None, total: int | None = None
) -> RowList:
    """Lists pairs that are given by runs: several a query, each of neighbours in a table of keys.

    Args:
        start: ``[Nq, S]`` int64, where each run begins.
        count: ``[Nq, S]`` int64, how many keys it has; 0 is fine.
        num_keys: Nk.
        table: ``[T]`` int64 keys, of which runs are cut; None = the keys 0, 1, ... themselves.
        total: The sum of ``count`` where it is known, so that a compiler knows it too.
    """
    indptr, col = run_rows(start, count, table, total)
    return RowList(indptr, col, num_keys)


def union(listings: Sequence[Listed | Band | Listing], num_queries: int, num_keys: int) -> Listing:
    """All pairs of several listings, each once."""
    bound = torch.sym_min(sum(listing.num_pairs for listing in listings), num_queries * num_keys)
    return Listing(bound, lambda: unique_pairs([listing.list() for listing in listings]))


def coded(query: Tensor, key: Tensor, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor]:
    """Codes ``i * Nk + j`` in rising order, with a greater one at the end ``[E + 1]``, and their order ``[E]``.

    With the sentinel ``codes[searchsorted(codes, wanted)] == wanted`` says which pairs are there, even of none.
    """
    codes, order = torch.sort(query * num_keys + key)
    return torch.cat([codes, codes.new_full((1,), num_queries * num_keys)]), order


def unique_pairs(lists: list[Listed]) -> PairList:
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


@torch.library.custom_op("unified_attn::run_rows", mutates_args=())
def run_rows(start: Tensor, count: Tensor, table: Tensor | None, total: int | None) -> tuple[Tensor, Tensor]:
    """Offsets ``[Nq + 1]`` int64 and keys ``[E]`` int32 of runs: see :func:`list_runs`."""
    indptr = torch.zeros(count.shape[0] + 1, dtype=torch.int64, device=count.device)
    indptr[1:] = count.sum(1).cumsum(0)
    size = int(indptr[-1]) if total is None else total
    if size > LIMIT:
        raise ValueError(f"the mask lists {size} pairs: a list has at most {LIMIT}")
    count = count.flatten()
    # Entry = start of its run + its number in the run. 32 bits throughout: what is as long as the list is what costs.
    first = (start.flatten() - (count.cumsum(0) - count)).to(torch.int32)
    entry = first.repeat_interleave(count.to(torch.int32), output_size=size)
    entry += torch.arange(size, dtype=torch.int32, device=count.device)
    return indptr, entry if table is None else table.to(torch.int32).index_select(0, entry)


@run_rows.register_fake
def _(start: Tensor, count: Tensor, table: Tensor | None, total: int | None) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size() if total is None else total
    return count.new_empty(count.shape[0] + 1), count.new_empty(size, dtype=torch.int32)


@torch.library.custom_op("unified_attn::transpose_rows", mutates_args=())
def transpose_rows(indptr: Tensor, col: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """``t_indptr``, ``t_row`` and ``t_edge`` of :class:`Rows` for pairs in row order."""
    return _transposed(indptr, col, num_keys)


def _transposed(indptr: Tensor, col: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    order = torch.argsort(col, stable=True)
    t_indptr = torch.zeros(1, num_keys + 1, dtype=torch.int64, device=col.device)
    t_indptr[0, 1:] = torch.bincount(col, minlength=num_keys).cumsum(0)
    row = torch.searchsorted(indptr[1:], order, right=True, out_int32=True)
    return t_indptr, row, order.to(torch.int32)


@transpose_rows.register_kernel("cpu")
def _(indptr: Tensor, col: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    try:
        from unified_attn._counting_sort import transpose  # needs numba: imported at the first use
    except Exception:  # without it, or with a broken one, the other back ends still run
        return _transposed(indptr, col, num_keys)
    t_indptr, row, edge = map(torch.from_numpy, transpose(indptr.numpy(), col.numpy(), num_keys))
    return t_indptr[None], row, edge


@transpose_rows.register_fake
def _(indptr: Tensor, col: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    return indptr.new_empty((1, num_keys + 1)), torch.empty_like(col), torch.empty_like(col)


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
