"""Trains a model that classifies nodes; a batch is the whole graph, so an epoch is a step."""

from __future__ import annotations

from collections.abc import Callable

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.training.config import TrainingConfig
from experiments.training.run import optimizer
from graphs.splits import Split

WHOLE = [range(1)] * 3
"""Batches of training, validation and test: one each, of which nothing is read."""


class NodeTraining(lightning.LightningModule):
    """Cross-entropy on the training nodes.

    Args:
        net: Gives logits ``[N, classes]`` of `inputs`.
        inputs: Its arguments; they are no part of the checkpoint.
        y: Class of each node.
        split: Nodes of each part.
        score: Of logits and classes.
        config: How it is trained.
    """

    def __init__(
        self,
        net: nn.Module,
        inputs: tuple[object, ...],
        y: Tensor,
        split: Split,
        score: Callable[[Tensor, Tensor], Tensor],
        config: TrainingConfig,
    ) -> None:
        super().__init__()
        self.net, self.config = net, config
        self.inputs, self.y, self.split, self.score = inputs, y, split, score

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self, self.config)

    def part(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and classes of some nodes."""
        return self.net(*self.inputs)[nodes], self.y[nodes]

    def training_step(self, batch: object, index: int) -> Tensor:
        loss = cross_entropy(*self.part(self.split.train))
        self.log("train/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, batch: object, index: int) -> None:
        logits, y = self.part(self.split.val)
        self.log_dict({"val/loss": cross_entropy(logits, y), "val/score": self.score(logits, y)}, batch_size=1)

    def test_step(self, batch: object, index: int) -> None:
        self.log("test/score", self.score(*self.part(self.split.test)), batch_size=1)


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Share of nodes whose largest logit is that of their class."""
    return (logits.argmax(-1) == y).double().mean()
