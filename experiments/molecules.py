"""Molecules in batches, and a model that learns a number of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from experiments.training.config import TrainingConfig
from experiments.training.run import optimizer
from graphs.packed import GraphSet
from graphs.paths import distance_blocks
from graphs.ranges import pointers, ranges
from unified_attn.models import GraphNetConfig

Batch = tuple[dict[str, Any], Tensor]


class Molecules:
    """Graphs with what a network reads of them; lengths of shortest paths are found once.

    Args:
        data: The graphs.
        config: Of the network.
    """

    def __init__(self, data: GraphSet, config: GraphNetConfig) -> None:
        self.data, self.types = data, bool(config.num_edge_types)
        self.distance = torch.cat([block.flatten() for block in distance_blocks(data)]) if config.max_distance else None
        self.pairs = data.node_ptr.diff() ** 2
        self.first = pointers(self.pairs)

    def batch(self, chosen: Tensor) -> Batch:
        """Arguments of the network for some graphs, packed, and their targets."""
        packed = self.data.batch(chosen)
        inputs: dict[str, Any] = {
            "x": packed.x,
            "edge_index": packed.edge_index,
            "batch": packed.batch,
            "num_graphs": len(chosen),
        }
        if self.types:
            inputs["edge_types"] = packed.edge_type
        if self.distance is not None:
            inputs["distance"] = self.distance[ranges(self.first[chosen], self.pairs[chosen])]
        return inputs, packed.y


class Batches:
    """Some molecules in batches.

    Args:
        molecules: All of them.
        chosen: Numbers of those that are shown.
        batch: Molecules a batch; the last one has the rest.
        shuffle: In another order every time, by torch's generator.
    """

    def __init__(self, molecules: Molecules, chosen: Tensor, batch: int, *, shuffle: bool) -> None:
        self.molecules, self.chosen, self.batch, self.shuffle = molecules, chosen, batch, shuffle

    def __len__(self) -> int:
        return -(-len(self.chosen) // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        order = self.chosen[torch.randperm(len(self.chosen))] if self.shuffle else self.chosen
        yield from map(self.molecules.batch, order.split(self.batch))


class RegressionTraining(lightning.LightningModule):
    """Mean absolute error, in the target's units, of a network whose outputs are in standard deviations.

    Args:
        net: Gives ``[G, 1]``.
        seen: Targets of the training part, for mean and deviation.
        config: How it is trained.
    """

    def __init__(self, net: nn.Module, seen: Tensor, config: TrainingConfig) -> None:
        super().__init__()
        self.net, self.config = net, config
        self.mean, self.std = float(seen.mean()), float(seen.std())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self, self.config)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, index: int) -> Batch:
        return batch  # a CPU job, and a number of graphs is no tensor

    def error(self, batch: Batch) -> Tensor:
        inputs, y = batch
        return (self.net(**inputs)[:, 0] * self.std + self.mean - y).abs().mean()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loss = self.error(batch)
        self.log("train/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=len(batch[1]))
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        error = self.error(batch)
        self.log_dict({"val/loss": error, "val/score": error}, batch_size=len(batch[1]))

    def test_step(self, batch: Batch, index: int) -> None:
        self.log("test/score", self.error(batch), batch_size=len(batch[1]))
