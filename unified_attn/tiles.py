"""Tiles: blocks of queries beside the keys that they may see, so that no table of all pairs is ever made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unified_attn.pairs import Pairs

if TYPE_CHECKING:
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
        kind: What there is beside the dot products: nothing in a ``"whole"`` tile; in a ``"causal"`` one each query
            sees the keys up to its own, the first query the first key; else a ``"table"``.
        number: Of its table: strips of one number share it.
        entries: Of the batch.
    """

    first: int
    height: int
    keys: range | Tensor
    tiles: int = 1
    kind: Literal["whole", "causal", "table"] = "table"
    number: int = 0
    entries: slice = field(default_factory=lambda: slice(None))

    @property
    def rows(self) -> slice:
        """Its queries."""
        return slice(self.first, self.first + self.tiles * self.height)

    @property
    def width(self) -> int:
        """W."""
        return len(self.keys)

    def is_all(self, queries: int, keys: int) -> bool:
        """Whether each of so many queries and of so many keys is in one tile of it, in order."""
        return (
            (self.first, self.tiles * self.height) == (0, queries)
            and isinstance(self.keys, range)
            and (self.keys.start, self.tiles * self.width) == (0, keys)
            and (self.tiles == 1 or self.width == self.height)
        )

    def is_like(self, other: Strip) -> bool:
        """Whether it is another's only tile, in other entries of the batch: both have a range of keys."""
        return (self.first, self.height, self.keys, self.kind) == (other.first, other.height, other.keys, other.kind)

    def follows(self, other: Strip) -> bool:
        """Whether it is another's tile, a height further on: both have one tile."""
        if not isinstance(self.keys, range) or not isinstance(other.keys, range):
            return False
        shift = other.height
        return (
            (self.first, self.height, self.kind) == (other.first + shift, shift, other.kind)
            and self.keys.start == other.keys.start + shift
            and self.keys.stop == other.keys.stop + shift
        )

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
        """Of ``[B, H, Nq, ...]`` the part ``[B * T, H, M, ...]``, a view if B or T is 1."""
        x = x[:, :, self.rows]
        return x if self.tiles == 1 else x.unflatten(2, (self.tiles, self.height)).transpose(1, 2).flatten(0, 1)

    def joined(self, part: Tensor) -> Tensor:
        """The other way round, of one batch entry if T is not 1: a view ``[B, H, T * M, ...]``."""
        return part if self.tiles == 1 else part.transpose(0, 1).flatten(1, 2)[None]

    def gather_keys(self, x: Tensor) -> Tensor:
        """Of ``[B, H, Nk, D]`` the part ``[B * T, H, W, D]``, a view if keys are a range and B or T is 1."""
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
