"""A band with gaps: dilated sliding-window attention."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.masks.base import Candidates, Mask, Reach
from unified_attn.pairs import Shape, check_count, check_far
from unified_attn.rows import KEPT, Listing, RowList, list_runs, recent


class Dilated(Mask):
    """Query i sees itself and, at steps of ``dilation``, ``size`` tokens on each side.

        |j - i| <= size * dilation  and  (j - i) mod dilation = 0

    i and j are positions. For a causal one write ``Dilated(size, dilation) & Causal()``.

    Args:
        size: Tokens seen on each side, beside the query's own.
        dilation: Distance from one to the next; 1 makes it ``Window(size, size)``.

    Raises:
        TypeError: If an argument is no int.
        ValueError: If ``size`` is negative, ``dilation`` below 1, or their product 2 ** 62 or more.

    Cost: lists (2 size + 1) N pairs, where positions are the default ones.

    Reference: Beltagy et al., Longformer, 2020, arXiv 2004.05150, section 3.1.

    Example:
        >>> Dilated(1, 2)
        Dilated(size=1, dilation=2)
        >>> print(Dilated(1, 2).draw(5, 5))
        #.#..
        .#.#.
        #.#.#
        .#.#.
        ..#.#
        >>> print(Dilated(1, 2).draw(2, 5))  # the last two tokens
        .#.#.
        ..#.#
    """

    def __init__(self, size: int, dilation: int) -> None:
        super().__init__()
        check_count("size", size, "give a number of tokens on each side")
        check_count("dilation", dilation, "give the distance from one token to the next")
        if size < 0:
            raise ValueError(f"size is {size}; give a number of tokens on each side, >= 0")
        if dilation < 1:
            raise ValueError(f"dilation is {dilation}; give a distance >= 1 (1 leaves no gaps)")
        check_far("size", size, "")
        check_far("dilation", dilation, "")
        check_far("size * dilation", size * dilation, "")
        self.size = size
        self.dilation = dilation

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = j - i
        return (distance.abs() <= self.size * self.dilation) & (distance % self.dilation == 0)

    def band(self) -> Reach | None:
        return (self.size, self.size) if self.dilation == 1 else None

    def candidates(self, shape: Shape) -> Candidates | None:
        if shape.offset is None or self.dilation == 1:
            return super().candidates(shape)
        bound = torch.sym_min((2 * self.size + 1) * shape.num_queries, shape.num_queries * shape.num_keys)
        offset = shape.offset
        key = (type(self), repr(self), shape.num_queries, shape.num_keys, offset, shape.device)
        return Candidates(recent(KEPT, key, lambda: Listing(bound, lambda: self._list(shape, offset))))

    def _list(self, shape: Shape, offset: int) -> RowList:
        """In a table that is sorted by the remainder, then by size, the keys of a query are neighbours."""
        keys, step = shape.num_keys, self.dilation
        position = torch.arange(shape.num_queries, device=shape.device) + offset
        remainder, place = position % step, position // step
        # Of the keys r, r + step, ... with a remainder r: how many there are, and where the table has them.
        number = (keys - remainder + step - 1) // step
        first = remainder * (keys // step) + remainder.clamp(max=keys % step)
        low = torch.minimum((place - self.size).clamp(min=0), number)
        high = torch.minimum((place + self.size + 1).clamp(min=0), number)
        table = torch.argsort(torch.arange(keys, device=shape.device) % step, stable=True)
        return list_runs((first + low)[:, None], (high - low)[:, None], keys, table)

    def __repr__(self) -> str:
        return f"Dilated(size={self.size}, dilation={self.dilation})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Dilated(2, 3))
