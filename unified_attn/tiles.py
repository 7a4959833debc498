"""Tiles: blocks of queries beside the keys that they may see, so that no table of all pairs is ever made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unified_attn.pairs import Pairs, Shape
from unified_attn.rows import Listed

if TYPE_CHECKING:
    from unified_attn.masks.base import Reach
    from unified_attn.problem import Problem


@dataclass(frozen=True, eq=False, kw_only=True)
class Tile(Pairs):
    """Some queries with some keys: pairs ``[B, Hq, M, W]``.

    Args:
        rows: ``[M]``, rows of q.
        columns: ``[W]``, rows of k.
    """

    rows: Tensor
    columns: Tensor

    @property
    def is_dense(self) -> bool:
        return False

    @property
    def batch(self) -> Tensor:
        return torch.arange(self.shape.batch, device=self.shape.device)[:, None, None, None]

    @property
    def head(self) -> Tensor:
        return torch.arange(self.shape.num_heads, device=self.shape.device)[None, :, None, None]

    @property
    def query(self) -> Tensor:
        return self.rows[None, None, :, None]

    @property
    def key(self) -> Tensor:
        return self.columns[None, None, None, :]

    @property
    def query_position(self) -> Tensor:
        return self.q_positions.index_select(1, self.rows)[:, None, :, None]

    @property
    def key_position(self) -> Tensor:
        return self.k_positions.index_select(1, self.columns)[:, None, None, :]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.shape.batch, self.shape.num_heads, self.rows.shape[0], self.columns.shape[0]

    @property
    def layout(self) -> str:
        return "[B, Hq, Nq, Nk] of a tile"

    def gather(self, table: Tensor) -> Tensor:
        table = table[(None,) * (4 - table.dim())]
        for side, index in ((2, self.rows), (3, self.columns)):
            if table.shape[side] != 1:
                table = table.index_select(side, index)
        return table


@dataclass(frozen=True, eq=False)
class Strip:
    """Equal tiles, one below the other, that are computed in one call: each M queries and M keys on from the last.

    Args:
        first: First query.
        height: Queries a tile, M.
        keys: Keys of the first tile: a range, or, of a strip of one tile, any of them, ``[W]``.
        tiles: How many, T. Of more than one, keys are a range, and one table of additive values serves all.
    """

    first: int
    height: int
    keys: range | Tensor
    tiles: int = 1

    @property
    def rows(self) -> slice:
        """Its queries."""
        return slice(self.first, self.first + self.tiles * self.height)

    @property
    def width(self) -> int:
        """W."""
        return len(self.keys)

    def tile(self, problem: Problem) -> Tile:
        """The pairs of the first tile."""
        device = problem.q.device
        keys = self.keys
        return Tile(
            problem.shape,
            problem.q_given,
            problem.k_given,
            rows=torch.arange(self.first, self.first + self.height, device=device),
            columns=torch.arange(keys.start, keys.stop, device=device) if isinstance(keys, range) else keys,
        )

    def queries(self, x: Tensor) -> Tensor:
        """Of ``[B, H, Nq, ...]`` the part ``[B * T, H, M, ...]``."""
        x = x[:, :, self.rows]
        return x if self.tiles == 1 else x.unflatten(2, (self.tiles, self.height)).transpose(1, 2).flatten(0, 1)

    def write_queries(self, x: Tensor, part: Tensor) -> None:
        """The other way round: ``part`` in the place of :meth:`queries`."""
        if self.tiles > 1:
            part = part.unflatten(0, (x.shape[0], self.tiles)).transpose(1, 2).flatten(2, 3)
        x[:, :, self.rows] = part

    def gather_keys(self, x: Tensor) -> Tensor:
        """Of ``[B, H, Nk, D]`` the part ``[B * T, H, W, D]``: views where they can be."""
        if not isinstance(self.keys, range):
            return x.index_select(2, self.keys)
        x = x[:, :, self.keys.start : self.keys.stop + (self.tiles - 1) * self.height]
        if self.tiles == 1:
            return x
        return x.unfold(2, self.width, self.height).permute(0, 2, 1, 4, 3).flatten(0, 1)

    def add_keys(self, x: Tensor, part: Tensor) -> None:
        """Adds ``part`` in the places of :meth:`gather_keys`: where tiles share a key, all of it."""
        if not isinstance(self.keys, range):
            x.index_add_(2, self.keys, part)
        elif self.tiles == 1:
            x[:, :, self.keys.start : self.keys.stop] += part
        else:
            part = part.unflatten(0, (x.shape[0], self.tiles)).transpose(1, 2)
            for start in range(0, self.width, self.height):  # pieces of one height lie side by side
                piece = part[:, :, :, start : start + self.height]
                place = x[:, :, self.keys.start + start :].unfold(2, piece.shape[3], self.height)
                place[:, :, : self.tiles].mT.add_(piece)


def strips(problem: Problem, *, merged: bool) -> list[Strip]:
    """Tiles that hold every visible pair once, and no key that none of their queries sees.

    A band of default positions has them in closed form. Else the mask's list of pairs names them, or if there is none
    the rule is asked, block by block.

    Args:
        problem: The call.
        merged: Whether equal tiles of a band may share one table of additive values.
    """
    band = problem.band
    if band is None or problem.shape.offset is None:
        found = _asked(problem) if problem.candidates is None else _listed(problem.candidates.list())
        return list(found)
    tiles = list(_banded(band, problem.shape))
    return _merged(tiles, problem.shape) if merged else tiles


HEIGHT = 128
"""Queries a tile."""

SIZE = 2**21
"""Numbers of the keys of a strip, at most: so much memory is used beside inputs and outputs."""


def _height(band: Reach) -> int:
    """Low tiles for narrow windows, which would be mostly empty otherwise."""
    left, right = band
    if left is None or right is None:
        return HEIGHT
    return 32 if left + right < 48 else 64 if left + right < 128 else HEIGHT


def _banded(band: Reach, shape: Shape) -> Iterator[Strip]:
    left, right = band
    offset = shape.offset or 0
    height = _height(band)
    for first in range(0, shape.num_queries, height):
        end = min(first + height, shape.num_queries)
        low = 0 if left is None else max(first + offset - left, 0)
        high = shape.num_keys if right is None else min(end + offset + right, shape.num_keys)
        if low < high:
            yield Strip(first, end - first, range(low, high))


def _merged(tiles: list[Strip], shape: Shape) -> list[Strip]:
    """Neighbours that differ by a shift alone in one strip."""
    found: list[Strip] = []
    for tile in tiles:
        last = found[-1] if found else None
        if last is not None and isinstance(last.keys, range) and isinstance(tile.keys, range):
            shift = last.tiles * last.height
            size = (last.tiles + 1) * last.width * shape.batch * shape.num_heads * max(shape.head_dim, 1)
            if (
                tile.height == last.height
                and last.rows.stop == tile.first
                and tile.keys == range(last.keys.start + shift, last.keys.stop + shift)
                and size <= SIZE
            ):
                found[-1] = Strip(last.first, last.height, last.keys, last.tiles + 1)
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
            yield Strip(first, min(HEIGHT, pairs.num_queries - first), _range(codes[start:end] % width))
        start = end


def _asked(problem: Problem) -> Iterator[Strip]:
    shape = problem.shape
    for first in range(0, shape.num_queries, HEIGHT):
        whole = Strip(first, min(HEIGHT, shape.num_queries - first), range(shape.num_keys))
        seen = problem.mask.on(whole.tile(problem))
        seen = seen[(None,) * (4 - seen.dim())].expand(-1, -1, -1, shape.num_keys)
        keys = seen.flatten(0, 2).any(0).nonzero()[:, 0]
        if keys.shape[0]:
            yield Strip(first, whole.height, _range(keys))


def _range(keys: Tensor) -> range | Tensor:
    """Rising keys as a range if they are one: no copies then."""
    low, high = int(keys[0]), int(keys[-1]) + 1
    return range(low, high) if high - low == keys.shape[0] else keys
