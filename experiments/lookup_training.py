"""Batches of dictionaries, and a model that learns to look values up in them."""

from __future__ import annotations

from collections.abc import Iterator

import lightning
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.layers import Source
from experiments.lookup_models import LookupNet
from experiments.training.config import TrainingConfig
from experiments.training.run import optimizer
from graphs.dictionary_lookup import DictionaryLookup
from unified_attn import Graph

Batch = tuple[Tensor, Tensor, Graph | Tensor]


class Batches:
    """Dictionaries in batches: the same graph over and over, side by side.

    Args:
        data: All dictionaries of one size.
        chosen: Numbers of those that are shown.
        batch: Dictionaries a batch; the last one has the rest.
        source: Whose layers they are for.
        shuffle: In another order every time, by torch's generator.
        steps: Least number of batches: few dictionaries are shown several times over.
    """

    def __init__(
        self,
        data: DictionaryLookup,
        chosen: Tensor,
        batch: int,
        source: Source,
        *,
        shuffle: bool = False,
        steps: int = 1,
    ) -> None:
        self.data, self.chosen, self.shuffle, self.source = data, chosen, shuffle, source
        self.batch = max(min(batch, len(chosen)), 1)
        self.once = -(-len(chosen) // self.batch)
        self.passes = -(-steps // max(self.once, 1))
        self.edges = {n: self.packed(n) for n in {self.batch, len(chosen) % self.batch} if n}

    def packed(self, count: int) -> Graph | Tensor:
        """The edges of so many dictionaries."""
        nodes = 2 * self.data.size
        shift = torch.arange(count).repeat_interleave(self.data.edge_index.shape[1]) * nodes
        edges = self.data.edge_index.repeat(1, count) + shift
        return Graph(edges, num_keys=count * nodes) if self.source == "unified_attn" else edges

    def __len__(self) -> int:
        return self.passes * self.once

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.passes):
            order = self.chosen[torch.randperm(len(self.chosen))] if self.shuffle else self.chosen
            for graphs in order.split(self.batch):
                yield self.data.x[graphs], self.data.y[graphs], self.edges[len(graphs)]


class LookupTraining(lightning.LightningModule):
    """Cross-entropy and accuracy over the queries."""

    def __init__(self, net: LookupNet, config: TrainingConfig) -> None:
        super().__init__()
        self.net, self.config = net, config

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self, self.config)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, index: int) -> Batch:
        return batch  # a CPU job, and a graph is no tensor

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, y, edges = batch
        logits = self.net(x, edges)
        return cross_entropy(logits.flatten(0, 1), y.flatten()), (logits.argmax(-1) == y).double().mean()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loss, _ = self.step(batch)
        self.log("train/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        loss, right = self.step(batch)
        self.log_dict({"val/loss": loss, "val/score": right}, batch_size=len(batch[0]))

    def test_step(self, batch: Batch, index: int) -> None:
        self.log("test/score", self.step(batch)[1], batch_size=len(batch[0]))


def share_right(net: LookupNet, data: DictionaryLookup, chosen: Tensor, source: Source) -> float:
    """Share of the queries of some dictionaries that are answered rightly."""
    right = total = 0
    with torch.inference_mode():
        for x, y, edges in Batches(data, chosen, 1000, source):
            right += int((net(x, edges).argmax(-1) == y).sum())
            total += y.numel()
    return right / total
