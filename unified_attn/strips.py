"""How a problem is cut into strips of tiles: none is missed that holds a visible pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unified_attn.rows import Listed
from unified_attn.tiles import Strip

if TYPE_CHECKING:
    from unified_attn.masks.base import Spans
    from unified_attn.problem import Problem

HEIGHT = 128
"""Queries a tile."""

LOW = 32
"""Queries a tile where many are computed in one call: fewer of its pairs are hidden then."""

ROOM = 2**21
"""Numbers that a call computes, at most: so much memory is used beside inputs and outputs."""

_STEP = 16
"""Keys a tile are a multiple of this, where the rest can be hidden: torch's matrix products prefer it."""


@dataclass(frozen=True)
class Cut:
    """The size of tiles.

    Args:
        height: Queries a tile.
        merged: Whether equal tiles are computed in one call. Not for what differs from tile to tile, as dropout does.
        keys_count: Whether each tile gets numbers for its keys (gradients), not for its queries alone.
    """

    height: int = HEIGHT
    merged: bool = False
    keys_count: bool = False


def low_cut(problem: Problem) -> Cut:
    """That of a forward pass."""
    return Cut(LOW if _shares(problem) else HEIGHT, problem.dropout_p == 0.0)


def high_cut(problem: Problem) -> Cut:
    """That of a backward pass, where tiles that overlap have to be added up: low ones for narrow windows alone."""
    height = 32 if problem.keys_a_query < 48 else 64 if problem.keys_a_query < 128 else HEIGHT
    return Cut(height if _shares(problem) else HEIGHT, problem.dropout_p == 0.0, keys_count=True)


def _shares(problem: Problem) -> bool:
    """Whether tiles that differ by a shift alone have one table of additive values."""
    return problem.relative and problem.dropout_p == 0.0


def strips(problem: Problem, cut: Cut) -> list[Strip]:
    """Tiles that hold every visible pair once.

    Where the keys of a query are one run, they are known beforehand. Else the mask's list of pairs names them, or if
    there is none the rule is asked, block by block.

    Args:
        problem: The call.
        cut: The size of tiles.
    """
    spans = problem.spans
    if spans is None or (spans.varies and not problem.bare):
        found = _asked(problem) if problem.candidates is None else _listed(problem.candidates.list())
        return list(found)
    if spans.varies:
        return _of_entries(problem, spans)
    tiles = list(_numbered(_of_spans(problem, spans, cut.height), spans, _shares(problem)))
    merged = _merged(tiles, problem, cut) if cut.merged else tiles
    # What is merged is computed once a batch entry.
    return merged if len(merged) * problem.shape.batch < len(tiles) else tiles


def _of_entries(problem: Problem, spans: Spans) -> list[Strip]:
    """Where batch entries differ: one strip for neighbours that do not, if a strip is all that an entry takes."""
    shape = problem.shape
    if shape.batch * shape.num_queries == 0:
        return []
    low, high = (x.expand(shape.batch, -1) for x in (spans.low, spans.high))
    row, seen = torch.arange(shape.num_queries, device=low.device), high > low
    count = seen.sum(1, keepdim=True)
    begin = seen.int().argmax(1, keepdim=True)
    first, last = low.gather(1, begin), high.gather(1, (begin + count - 1).clamp(min=0))
    starts = low == first
    kinds = {
        "whole": starts & (high == last),
        "causal": starts & (high == torch.minimum(first + 1 + row - begin, last)) & (problem.scale > 0.0),
    }
    inside = (row >= begin) & (row < begin + count)
    is_kind = {kind: ((there & inside) | ~(seen | inside)).all(1).tolist() for kind, there in kinds.items()}
    found: list[Strip] = []
    sizes = torch.cat([begin, count, first, last], 1).tolist()
    for b, (size, whole, causal) in enumerate(zip(sizes, is_kind["whole"], is_kind["causal"], strict=True)):
        at, height, start, stop = size
        entry = slice(b, b + 1)
        if not whole and not causal:
            numbers = found[-1].number + 1 if found else 0
            own = _of_spans(problem, replace(spans, low=low[entry], high=high[entry]), HEIGHT)
            found += [replace(strip, number=numbers + n, entries=entry) for n, strip in enumerate(own)]
            continue
        strip = Strip(at, height, range(start, stop), kind="whole" if whole else "causal", entries=entry)
        if found and found[-1].entries.stop == b and strip.is_like(found[-1]):
            found[-1] = replace(found[-1], entries=slice(found[-1].entries.start, b + 1))
        elif height:
            found.append(replace(strip, number=found[-1].number + 1 if found else 0))
    return found


def _of_spans(problem: Problem, spans: Spans, height: int) -> Iterator[Strip]:
    """Island by island: the queries of one see no key that those of another see."""
    low, high = spans.low[0], spans.high[0]
    if low.numel() == 0:
        return
    apart = (low[1:] >= high[:-1]).nonzero()[:, 0] + 1
    begins = [0, *apart.tolist()]
    ends = [*begins[1:], len(low)]
    steps = high.diff()
    # Of each query, how many up to it differ from the one before: in where keys begin, in where they end, and in not
    # seeing exactly one more.
    moves, grows, other = ([0, *x.cumsum(0).tolist()] for x in (low.diff() != 0, steps != 0, steps != 1))
    lows, highs = low.tolist(), high.tolist()
    bare = problem.bare  # else tables are formed, of a height of rows at a time
    flag = bare and problem.scale > 0.0  # the kernel's own flag hides before it scales
    for begin, end in zip(begins, ends, strict=True):
        first, last = lows[begin], highs[end - 1]
        still = moves[begin] == moves[end - 1]
        whole = still and grows[begin] == grows[end - 1]
        if whole and last <= first:
            continue
        if whole and bare:
            yield Strip(begin, end - begin, range(first, last), kind="whole")
        elif still and flag and highs[begin] == first + 1 and other[begin] == other[end - 1]:
            yield Strip(begin, end - begin, range(first, last), kind="causal")
        else:
            row = begin
            while row < end:
                # Where an end stands still, no two tiles are alike: higher ones are fewer.
                stop = min(row + HEIGHT, end)
                if lows[row] != lows[stop - 1] and highs[row] != highs[stop - 1]:
                    stop = min(row + height, end)
                keys = range(min(lows[row:stop]), max(highs[row:stop]))
                if keys:
                    yield Strip(row, stop - row, _rounded(keys, problem.shape.num_keys))
                row = stop


def _rounded(keys: range, num_keys: int) -> range:
    """A few hidden keys more, before or behind."""
    more = -len(keys) % _STEP
    start = max(keys.start - more, 0)
    return range(start, min(keys.stop + more - (keys.start - start), num_keys))


def _numbered(tiles: Iterator[Strip], spans: Spans, shares: bool) -> Iterator[Strip]:
    """Neighbours that differ by a shift alone get one number."""
    low, high = spans.low[0], spans.high[0]
    place = torch.arange(len(low), device=low.device)
    low, high = low - place, high - place
    unlike: dict[int, list[int]] = {}  # by shift: of each query, how many up to it differ from that so far before
    last: Strip | None = None
    number = -1
    for tile in tiles:
        like = last is not None and tile.follows(last) and (shares or tile.kind != "table")
        if like and tile.kind == "table":
            shift = tile.height
            if shift not in unlike:
                differ = (low[shift:] != low[:-shift]) | (high[shift:] != high[:-shift])
                unlike[shift] = [0, *differ.cumsum(0).tolist()]
            counts = unlike[shift]
            like = counts[tile.first] == counts[tile.first - shift]
        number += not like
        last = replace(tile, number=number)
        yield last


def _merged(tiles: list[Strip], problem: Problem, cut: Cut) -> list[Strip]:
    """Neighbours of one number in one strip, as many as there is room for."""
    shape = problem.shape
    width = shape.num_heads * max(problem.q.shape[3], problem.v.shape[3], 1)
    found: list[Strip] = []
    # Where there is one strip of tiles that share no key, what is computed is the result, without room of its own.
    alone = len(tiles) > 0 and tiles[-1].number == 0 and (not cut.keys_count or tiles[0].width == tiles[0].height)
    for tile in tiles:
        last = found[-1] if found else None
        if last is not None and last.number == tile.number:
            size = max(tile.height, tile.width) if cut.keys_count else tile.height
            if (last.tiles + 1) * size * width <= ROOM or alone:
                found[-1] = replace(last, tiles=last.tiles + 1)
                continue
        found.append(tile)
    return found


def _listed(pairs: Listed) -> Iterator[Strip]:
    width = max(pairs.num_keys, 1)
    codes = torch.unique(pairs.query // HEIGHT * width + pairs.key)  # in order: block of queries, then key
    blocks = -(-pairs.num_queries // HEIGHT)
    ends = torch.searchsorted(codes, torch.arange(1, blocks + 1, device=codes.device) * width).tolist()
    start = 0
    for block, end in enumerate(ends):
        if start < end:
            first = block * HEIGHT
            height = min(HEIGHT, pairs.num_queries - first)
            yield Strip(first, height, _range(codes[start:end] % width), number=block)
        start = end


def _asked(problem: Problem) -> Iterator[Strip]:
    shape = problem.shape
    for number, first in enumerate(range(0, shape.num_queries, HEIGHT)):
        whole = Strip(first, min(HEIGHT, shape.num_queries - first), range(shape.num_keys))
        seen = problem.mask.on(whole.tile(problem))
        seen = seen[(None,) * (4 - seen.dim())].expand(-1, -1, -1, shape.num_keys)
        keys = seen.flatten(0, 2).any(0).nonzero()[:, 0]
        if keys.shape[0]:
            yield Strip(first, whole.height, _range(keys), number=number)


def _range(keys: Tensor) -> range | Tensor:
    """Rising keys as a range if they are one: no copies then."""
    low, high = int(keys[0]), int(keys[-1]) + 1
    return range(low, high) if high - low == keys.shape[0] else keys
