"""Blocks: global ones, a window of them, and random ones."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.dropout import HEAD_STEP, PAIR_STEP, mix, signed
from unified_attn.masks.base import Candidates, Mask
from unified_attn.pairs import Shape, check_count, check_far
from unified_attn.rows import KEPT, Listing, RowList, list_runs, recent


class BigBird(Mask):
    """Attention of blocks of tokens: to a window of blocks, to global ones, and to some drawn at random.

    Position i is in block I = floor(i / block_size), j in J. Query i may attend key j where one of these holds:

        |J - I| <= (window_blocks - 1) / 2                         window
        0 <= I < global_blocks  or  0 <= J < global_blocks         global, both ways
        J = draw(seed, I, n) for some n < random_blocks            random

    ``draw`` is a hash of its arguments, even over the blocks from 0 to the last before the next power of two above I:
    row block 0 draws block 0, row block 1 one of 0..1, row blocks 2 and 3 of 0..3, 4 to 7 of 0..7. So a pair of
    positions is allowed or not whatever the length: no table, the same on every device, and a step of decoding sees
    what the whole run sees. A draw may repeat, fall on a block that is there already, or, in row blocks beyond the
    last power of two, behind the end.

    Args:
        block_size: Tokens a block; the last may be shorter.
        global_blocks: The first so many blocks see everything and are seen by everything.
        window_blocks: Blocks of the window, the row's own included: odd.
        random_blocks: Draws a row block.
        seed: Of the draws, from 0 to 2 ** 63 - 1.

    Raises:
        TypeError: If an argument is no int.
        ValueError: If one is out of range, or ``window_blocks`` even.

    Cost: lists (2 global + window + random) block_size N pairs at most, where positions are the default ones.

    Reference: Zaheer et al., Big Bird, 2020, arXiv 2007.14062, section 2 (BigBird-ITC) and appendix D (blocks). There
    random blocks are drawn evenly from the whole of a sequence, whose length is thus part of the rule.

    Example:
        >>> BigBird(2, 1, 3, 0, seed=0)
        BigBird(block_size=2, global_blocks=1, window_blocks=3, random_blocks=0, seed=0)
        >>> print(BigBird(2, 1, 1, 0, seed=0).draw(6, 6))
        ######
        ######
        ####..
        ####..
        ##..##
        ##..##
        >>> print(BigBird(1, 0, 1, 1, seed=0).draw(8, 8))  # itself and one drawn
        #.......
        ##......
        ..#.....
        ...#....
        ..#.#...
        .....##.
        #.....#.
        ..#....#
        >>> print(BigBird(2, 1, 1, 0, seed=0).draw(3, 5))  # the last three tokens
        ####.
        ####.
        ##..#
    """

    def __init__(self, block_size: int, global_blocks: int, window_blocks: int, random_blocks: int, seed: int) -> None:
        super().__init__()
        for name, value, least in (
            ("block_size", block_size, 1),
            ("global_blocks", global_blocks, 0),
            ("window_blocks", window_blocks, 1),
            ("random_blocks", random_blocks, 0),
            ("seed", seed, 0),
        ):
            check_count(name, value, f"give an int >= {least}")
            if value < least:
                raise ValueError(f"{name} is {value}; give an int >= {least}")
        if window_blocks % 2 == 0:
            raise ValueError(
                f"window_blocks is {window_blocks}; it counts the row's own block and as many on either side: odd"
            )
        blocks = global_blocks + window_blocks + random_blocks
        check_far("block_size * (global_blocks + window_blocks + random_blocks)", block_size * blocks, "")
        if seed >= 2**63:
            raise ValueError(f"seed is {seed}; it must be below 2 ** 63")
        self.block_size = block_size
        self.global_blocks = global_blocks
        self.window_blocks = window_blocks
        self.random_blocks = random_blocks
        self.seed = seed

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row, column = i // self.block_size, j // self.block_size
        allowed = (column - row).abs() <= self.window_blocks // 2
        for block in (row, column):
            allowed = allowed | ((block >= 0) & (block < self.global_blocks))
        for n in range(self.random_blocks):
            allowed = allowed | (column == self._draw(row, n))
        return allowed

    def _draw(self, row: Tensor, n: int) -> Tensor:
        """The n-th random block of each row block."""
        row = row.clamp(min=0)  # queries before every key have negative positions
        last = row
        for shift in (1, 2, 4, 8, 16, 32):  # all bits below the highest: the last block before a power of two
            last = last | (last >> shift)
        return mix(row * HEAD_STEP + signed((self.seed + n * PAIR_STEP) % 2**64)) & last

    def candidates(self, shape: Shape) -> Candidates | None:
        if shape.offset is None:
            return None
        blocks = self.global_blocks + self.window_blocks + self.random_blocks
        most = shape.num_queries * blocks * self.block_size + self.global_blocks * self.block_size * shape.num_keys
        bound = torch.sym_min(most, shape.num_queries * shape.num_keys)
        offset = shape.offset
        key = (type(self), repr(self), shape.num_queries, shape.num_keys, offset, shape.device)
        return Candidates(recent(KEPT, key, lambda: Listing(bound, lambda: self._list(shape, offset))))

    def _list(self, shape: Shape, offset: int) -> RowList:
        """The blocks of each query in order, each once, as runs of keys."""
        row = (torch.arange(shape.num_queries, device=shape.device) + offset)[:, None] // self.block_size
        reach = self.window_blocks // 2
        first = torch.arange(self.global_blocks, device=shape.device).expand(row.shape[0], -1)
        near = row + torch.arange(-reach, reach + 1, device=shape.device)
        drawn = [self._draw(row, n) for n in range(self.random_blocks)]
        blocks = torch.cat([first, near, *drawn], 1).sort(1).values
        start = (blocks * self.block_size).clamp(0, shape.num_keys)
        count = ((blocks + 1) * self.block_size).clamp(0, shape.num_keys) - start
        again = torch.nn.functional.pad(blocks[:, 1:] == blocks[:, :-1], (1, 0))
        count = count.masked_fill(again, 0)
        everywhere = (row >= 0) & (row < self.global_blocks)
        every = torch.nn.functional.pad(torch.full_like(row, shape.num_keys), (0, blocks.shape[1] - 1))
        return list_runs(torch.where(everywhere, 0, start), torch.where(everywhere, every, count), shape.num_keys)

    def __repr__(self) -> str:
        return (
            f"BigBird(block_size={self.block_size}, global_blocks={self.global_blocks}, "
            f"window_blocks={self.window_blocks}, random_blocks={self.random_blocks}, seed={self.seed})"
        )


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(BigBird(2, 1, 3, 1, seed=0), 16, 16)
