"""Classifies the nodes of one graph: `python -m experiments.node_classification --help`.

python -m experiments.node_classification --dataset cora --model gat --run.seeds 10
python -m experiments.node_classification --dataset minesweeper --model gat-sep --run.seeds 3
python -m experiments.node_classification --config job.yaml        # as --print_config writes it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import binary_auroc, multiclass_accuracy

from experiments.layers import Source
from experiments.node_models import CitationConfig, CitationNet, ResidualConfig, ResidualNet
from experiments.training.config import RunConfig, TrainingConfig
from experiments.training.job import plain, repeat
from experiments.training.run import Outcome, fit, optimizer
from graphs.datasets import heterophilous, planetoid
from graphs.features import row_normalized
from graphs.sets import NodeData
from graphs.splits import Split

Dataset = Literal["cora", "citeseer", "minesweeper", "chameleon", "squirrel", "texas"]
Model = Literal["gat", "gatv2", "transformer", "gat-sep"]


def load(dataset: Dataset) -> NodeData:
    """The graph as its papers use it: citation graphs with normalised bags of words and the public split."""
    if dataset in ("cora", "citeseer"):
        data = planetoid({"cora": "Cora", "citeseer": "CiteSeer"}[dataset])
        return dataclasses.replace(data, x=row_normalized(data.x))
    return heterophilous(dataset)


class NodeTraining(lightning.LightningModule):
    """Cross-entropy on the training nodes; a batch is the whole graph, so an epoch is a step."""

    def __init__(self, net: nn.Module, data: NodeData, split: Split, edges: Any, config: TrainingConfig) -> None:
        super().__init__()
        self.net, self.config = net, config
        self.graph_data, self.split, self.edges = data, split, edges

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self, self.config)

    def forward(self) -> Tensor:
        return self.net(self.graph_data.x, self.edges)

    def training_step(self, batch: object, index: int) -> Tensor:
        loss = cross_entropy(self()[self.split.train], self.graph_data.y[self.split.train])
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, batch: object, index: int) -> None:
        logits, nodes = self(), self.split.val
        self.log("val/loss", cross_entropy(logits[nodes], self.graph_data.y[nodes]), batch_size=1)
        self.log("val/score", self.score(logits, nodes), batch_size=1)

    def test_step(self, batch: object, index: int) -> None:
        self.log("test/score", self.score(self(), self.split.test), batch_size=1)

    def score(self, logits: Tensor, nodes: Tensor) -> Tensor:
        """ROC AUC where there are two classes, else accuracy."""
        y, classes = self.graph_data.y[nodes], self.graph_data.num_classes
        if classes == 2:
            return binary_auroc(logits[nodes].softmax(-1)[:, 1], y)
        return multiclass_accuracy(logits[nodes], y, classes, average="micro")


def node_classification(
    dataset: Dataset = "cora",
    model: Model = "gat",
    layers: Source = "unified_attn",
    run: RunConfig | None = None,
    training: TrainingConfig | None = None,
    citation: CitationConfig | None = None,
    residual: ResidualConfig | None = None,
) -> dict[str, Any]:
    """Trains, chooses by the validation part, tests, and writes results.json, curves, checkpoints and logs.

    Citation graphs get the two layers and the training of the GAT paper (about half a minute a seed on two cores),
    heterophilous ones the residual models of Platonov et al. (one to five minutes), each seed on a split of its own.

    Args:
        dataset: The graph. Scores are accuracy; of minesweeper ROC AUC.
        model: `gat`, `gatv2`, `transformer`; `gat-sep` (heterophilous only).
        layers: Whose layers: ours, or torch-geometric's as a baseline with the same seeds.
        run: Where and how often; default folder outputs/node_classification/DATASET-MODEL-LAYERS.
        training: How long; default as in the dataset's paper.
        citation: Sizes of the citation model; its `layer` is `model`.
        residual: Sizes of the residual model; its `layer` and `separate` follow `model`.

    Returns:
        What results.json holds.
    """
    data = load(dataset)
    of_citations = dataset in ("cora", "citeseer")
    run = run or RunConfig(Path(f"outputs/node_classification/{dataset}-{model}-{layers}"))
    build: Callable[[], nn.Module]
    if of_citations:
        if model == "gat-sep":
            raise ValueError("model is 'gat-sep', which is for heterophilous graphs; choose gat, gatv2 or transformer")
        training = training or TrainingConfig()
        sizes = dataclasses.replace(citation or CitationConfig(), layer=model)

        def build() -> nn.Module:
            return CitationNet(data.x.shape[1], data.num_classes, sizes, layers)
    else:
        training = training or TrainingConfig(
            epochs=600, lr=1e-3, weight_decay=0.0, optimizer="adamw", patience=150, monitor="val/score"
        )
        kind, separate = ("gat", True) if model == "gat-sep" else (model, False)
        sizes = dataclasses.replace(residual or ResidualConfig(), layer=kind, separate=separate)

        def build() -> nn.Module:
            return ResidualNet(data.x.shape[1], data.num_classes, sizes, layers)

    # A graph checked and sorted once, for all layers and steps; torch-geometric's layers take the edges.
    edges = data.graph() if layers == "unified_attn" else data.edge_index
    print(f"{data}\n{model} of {layers}: {sum(p.numel() for p in build().parameters()):,} parameters")

    def one(seed: int, folder: Path) -> Outcome:
        split = data.splits[seed % len(data.splits)]
        module = NodeTraining(build(), data, split, edges, training)
        batches = [range(1)] * 3
        return fit(module, *batches, training, folder, seed, resume=run.resume, progress=run.progress)

    settings = {"dataset": dataset, "model": model, "layers": layers, **plain(training, sizes)}
    return repeat(one, run, settings, "ROC AUC" if data.num_classes == 2 else "accuracy")


if __name__ == "__main__":
    jsonargparse.auto_cli(node_classification, as_positional=False)
