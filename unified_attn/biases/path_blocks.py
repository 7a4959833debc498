"""Values of pairs of packed graphs, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unified_attn.biases.base import Bias, widened
from unified_attn.biases.learned import check_heads
from unified_attn.pairs import Pairs, Shape, check_device, check_integers, describe, hold


class PathBlockBias(Bias):
    """What :class:`~unified_attn.ShortestPath` and :class:`~unified_attn.PathFeatures` give for blocks.

    Args:
        maker: What gave it, as text.
        weight: ``[K, Hq]``.
        codes: ``[sum of n * n]``, in 0..K-1: each graph's table, row by row.
        sizes: ``[G]``, the n of each graph.
    """

    weight: Tensor
    codes: Tensor
    sizes: Tensor
    space = "row"

    def __init__(self, maker: str, weight: Tensor, codes: Tensor, sizes: Tensor) -> None:
        super().__init__()
        self.maker = maker
        hold(self, "weight", weight)
        hold(self, "codes", codes)
        hold(self, "sizes", sizes)

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.maker.partition("(")[0]

    def on(self, pairs: Pairs) -> Tensor:
        first, row = _block_rows(self.sizes, self.codes.shape[0], pairs.shape.num_queries, self.name)
        i, j = pairs.query, pairs.key
        # One code more, of a row of zeros, for pairs of two graphs.
        codes = torch.cat([self.codes, self.codes.new_full((1,), self.weight.shape[0])])
        table = torch.cat([widened(self.weight), self.weight.new_zeros(1, self.weight.shape[1])])
        place = torch.where(first[i] == first[j], row[i] + j - first[i], self.codes.shape[0])
        return table[codes[place], pairs.head]

    def check(self, shape: Shape) -> None:
        check_heads(self.name, self.weight.shape[1], self.weight, shape)
        check_device(f"{self.name}'s blocks", self.codes, shape)
        check_device(f"{self.name}'s sizes", self.sizes, shape)
        if shape.num_queries != shape.num_keys:
            raise ValueError(
                f"{self.name}'s blocks are square, but q has {shape.num_queries} rows and k {shape.num_keys}"
            )
        _block_rows(self.sizes, self.codes.shape[0], shape.num_queries, self.name)  # the sums, before any work

    def __repr__(self) -> str:
        return f"{self.maker}({self.sizes.shape[0]} blocks, {self.codes.shape[0]} pairs)"


def flattened(name: str, blocks: object, form: str) -> tuple[Tensor, Tensor]:
    """Tables of graphs one after the other, a row a pair, and their sizes.

    Args:
        name: Of the argument.
        blocks: What should be a sequence of integer tensors of this form.
        form: ``"[n, n]"`` or ``"[n, n, L]"``; an L below the greatest is filled up with -1.
    """
    if not isinstance(blocks, Sequence):
        raise TypeError(f"{name} is a {type(blocks).__name__}; give a tensor, or a sequence of tensors {form}")
    dims = form.count(",") + 1
    for n, block in enumerate(blocks):
        check_integers(f"{name}[{n}]", block, f"give integers {form}, -1 = no path")
        if block.dim() != dims or block.shape[0] != block.shape[1]:
            raise ValueError(f"{name}[{n}] is {describe(block)}; a graph's own table is square, {form}")
    sizes = torch.tensor([len(x) for x in blocks], dtype=torch.int64, device=blocks[0].device if blocks else None)
    rows = [x.long().flatten(0, 1) for x in blocks]
    if dims == 3:
        longest = max((x.shape[1] for x in rows), default=0)
        rows = [nn.functional.pad(x, (0, longest - x.shape[1]), value=-1) for x in rows]
    return torch.cat(rows) if rows else sizes.new_zeros((0,) * (dims - 1)), sizes


@torch.library.custom_op("unified_attn::block_rows", mutates_args=())
def _block_rows(sizes: Tensor, num_codes: int, num_nodes: int, name: str) -> tuple[Tensor, Tensor]:
    """For each node the first node of its graph, which names the graph, and the place of its row among the codes."""
    sizes = sizes.long()
    nodes, codes = int(sizes.sum()), int((sizes * sizes).sum())
    if nodes != num_nodes:
        raise ValueError(f"{name}'s blocks have {nodes} nodes in all, but q and k have {num_nodes} rows")
    if codes != num_codes:
        raise ValueError(f"{name}'s blocks ask for {codes} pairs (the sum of n * n), but {num_codes} are given")
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes, output_size=nodes)
    start = ((sizes * sizes).cumsum(0) - sizes * sizes).repeat_interleave(sizes, output_size=nodes)
    local = torch.arange(nodes, device=sizes.device) - first
    return first, start + local * sizes.repeat_interleave(sizes, output_size=nodes)


@_block_rows.register_fake
def _(sizes: Tensor, num_codes: int, num_nodes: int, name: str) -> tuple[Tensor, Tensor]:
    first, place = (sizes.new_empty(num_nodes, dtype=torch.int64) for _ in range(2))
    return first, place
