"""Seeds in batches, each with its sampled blocks, for torch's data loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from graphs.sampling import Block, Neighbors
from unified_attn.pairs import check_count


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """Args:
    seeds: Nodes to compute, ``[S]``.
    blocks: One a layer, first layer first.
    """

    seeds: Tensor
    blocks: list[Block]


class SampledBatches(Dataset[SampledBatch]):
    """Batch b of an epoch: some of the seeds, in random order, with blocks around them.

    A batch depends on the seed, the epoch and its number alone, so that any number of workers gives the same batches:
    ``DataLoader(batches, batch_size=None, num_workers=...)``.

    Args:
        neighbors: The graph.
        seeds: Nodes to compute, ``[S]`` int64, none twice.
        fanouts: As :meth:`Neighbors.sample` takes them.
        batch_size: Seeds a batch; the last batch has the rest.
        shuffle: False keeps the seeds' order.
        seed: Of order and samples.

    Raises:
        ValueError: If ``batch_size`` is below 1, or seeds or fanouts are not what the graph can sample.

    Example:
        >>> ring = torch.tensor([[3, 0, 1, 2], [0, 1, 2, 3]])
        >>> batches = SampledBatches(Neighbors(ring, 4), torch.arange(3), [1], batch_size=2, shuffle=False)
        >>> [batch.seeds.tolist() for batch in batches]
        [[0, 1], [2]]
    """

    def __init__(
        self,
        neighbors: Neighbors,
        seeds: Tensor,
        fanouts: Sequence[int],
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        check_count("batch_size", batch_size, "give an integer, at least 1")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give at least 1")
        neighbors.check(seeds, fanouts)
        self.neighbors = neighbors
        self.seeds = seeds
        self.fanouts = list(fanouts)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Another order and other samples; to be called before the loader is iterated (no persistent workers)."""
        self.epoch = epoch
        shuffled = torch.randperm(len(self.seeds), generator=self._generator(0))
        self._order = self.seeds[shuffled] if self.shuffle else self.seeds

    def __len__(self) -> int:
        return -(-len(self.seeds) // self.batch_size)

    def __getitem__(self, index: int) -> SampledBatch:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        seeds = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        return SampledBatch(seeds, self.neighbors.sample(seeds, self.fanouts, self._generator(1 + index)))

    def _generator(self, stream: int) -> torch.Generator:
        mixed = np.random.SeedSequence([self.seed, self.epoch, stream]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(mixed[0]))
