"""Sampled neighbourhoods, for graphs whose nodes do not all fit at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphs.checks import check_numbers, checked_edges
from graphs.ranges import pointers, ranges
from unified_attn import Graph
from unified_attn.pairs import check_count


@dataclass(frozen=True, eq=False)
class Block:
    """One layer's share of a sample: edges from a set of source nodes to some of them, the targets.

    Args:
        edge_index: ``[2, E]`` int64: row 0 counts in ``nodes``, row 1 in its first ``num_targets`` entries. Ordered by
            target.
        nodes: Number in the whole graph of each source, ``[Nk]``; the targets come first.
        num_targets: Nq.
        edge_ids: Number in the whole graph of each edge, ``[E]``: rows of its edge features.
    """

    edge_index: Tensor
    nodes: Tensor
    num_targets: int
    edge_ids: Tensor

    def graph(self) -> Graph:
        """For k and v of ``nodes``, and q of its first ``num_targets`` rows."""
        return Graph(self.edge_index, num_keys=len(self.nodes), num_queries=self.num_targets)


class Neighbors:
    """A graph sorted by target, ready to be sampled.

    Args:
        edge_index: ``[2, E]`` integers, sources then targets.
        num_nodes: N.

    Raises:
        ValueError: If an index is out of range.

    Example:
        >>> ring = torch.tensor([[3, 0, 1, 2], [0, 1, 2, 3]])
        >>> first, second = Neighbors(ring, 4).sample(torch.tensor([2]), [-1, -1])
        >>> first.nodes, second.nodes  # from two steps away to one, from there to the seed
        (tensor([2, 1, 0]), tensor([2, 1]))
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        edge_index = checked_edges(edge_index, num_nodes)
        self.num_nodes = num_nodes
        self.edge_ids = edge_index[1].argsort(stable=True)
        self.source = edge_index[0][self.edge_ids]
        self.indptr = pointers(torch.bincount(edge_index[1], minlength=num_nodes))

    @classmethod
    def from_csr(cls, indptr: Tensor, indices: Tensor) -> Neighbors:
        """The same from rows: sources of node i are ``indices[indptr[i]:indptr[i + 1]]``, in that edge order.

        Args:
            indptr: ``[N + 1]`` int64, from 0 to E, never falling.
            indices: ``[E]`` int64.
        """
        graph = Graph.from_csr(indptr, indices)  # checks both
        return cls(graph.edge_index, len(indptr) - 1)

    def sample(self, seeds: Tensor, fanouts: Sequence[int], generator: torch.Generator | None = None) -> list[Block]:
        """Blocks for the layers of a model, first layer first; the last one's targets are the seeds.

        Each target gets a uniformly random set of its incoming edges, without replacement, in every block anew. With
        all fanouts -1 a model computes for the seeds exactly what it computes on the whole graph.

        Args:
            seeds: Nodes to compute, ``[S]`` int64, none twice.
            fanouts: Edges a target at most, for each layer, first layer first; -1 = all.
            generator: Default torch's.

        Raises:
            TypeError: If ``fanouts`` is no list of integers.
            ValueError: If a seed is out of range or given twice, or a fanout is below -1.
        """
        self.check(seeds, fanouts)
        blocks: list[Block] = []
        for fanout in reversed(fanouts):
            blocks.insert(0, self._block(seeds, fanout, generator))
            seeds = blocks[0].nodes
        return blocks

    def check(self, seeds: Tensor, fanouts: Sequence[int]) -> None:
        """Raises what :meth:`sample` would raise."""
        check_numbers("seeds", seeds, self.num_nodes)
        if len(seeds.unique()) < len(seeds):
            raise ValueError(f"seeds holds some of its {len(seeds)} nodes twice; give each once")
        if not isinstance(fanouts, Sequence | np.ndarray):
            raise TypeError(f"fanouts is {fanouts!r}; give a list of numbers of edges, one a layer")
        for i, fanout in enumerate(fanouts):
            check_count(f"fanouts[{i}]", fanout, "give a number of edges, or -1 for all")
        if wrong := [fanout for fanout in fanouts if fanout < -1]:
            raise ValueError(f"fanouts holds {wrong[0]}; give a number of edges, or -1 for all")

    def _block(self, targets: Tensor, fanout: int, generator: torch.Generator | None) -> Block:
        begin = self.indptr[targets]
        count = self.indptr[targets + 1] - begin
        if fanout < 0:
            owner, slot = torch.arange(len(targets)).repeat_interleave(count), ranges(begin, count)
        else:
            many = (count > fanout).nonzero()[:, 0]
            few = (count <= fanout).nonzero()[:, 0]
            chosen = begin[many, None] + distinct(count[many], fanout, generator)
            slot = torch.cat([ranges(begin[few], count[few]), chosen.flatten()])
            owner = torch.cat([few.repeat_interleave(count[few]), many.repeat_interleave(fanout)])
            owner, order = owner.sort(stable=True)
            slot = slot[order]
        source = self.source[slot]
        nodes = torch.cat([targets, source[~torch.isin(source, targets)].unique()])
        ascending, place = nodes.sort()
        local = place[torch.searchsorted(ascending, source)]
        return Block(torch.stack([local, owner]), nodes, len(targets), self.edge_ids[slot])


def distinct(count: Tensor, number: int, generator: torch.Generator | None = None) -> Tensor:
    """For each row a uniformly random set of ``number`` different integers below its ``count``, ascending.

    Floyd's algorithm (Bentley, Communications of the ACM 30(9), 1987), on all rows at once: its cost does not depend on
    the counts, so nodes of many neighbours are no dearer than others.

    Args:
        count: ``[R]`` int64, each at least ``number``.
        number: M.

    Returns:
        ``[R, M]`` int64.
    """
    chosen = torch.empty(len(count), number, dtype=torch.int64)
    for m in range(number):
        last = count - number + m
        drawn = (torch.rand(len(count), dtype=torch.float64, generator=generator) * (last + 1)).long()
        drawn = torch.minimum(drawn, last)  # the product may round up
        taken = (chosen[:, :m] == drawn[:, None]).any(1)
        chosen[:, m] = torch.where(taken, last, drawn)
    return chosen.sort(1).values
