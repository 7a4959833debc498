"""Classifies the nodes of one graph.

    python -m experiments.node_classification --dataset cora --model gatv2 --seeds 10
    python -m experiments.node_classification --dataset cora --model gatv2 --seeds 10 --layers torch_geometric
    python -m experiments.node_classification --dataset minesweeper --model gat-sep --seeds 3
    python -m experiments.node_classification --dataset cora --print_config > job.yaml
    python -m experiments.node_classification --config job.yaml --training.lr 0.01

Defaults follow the data set's paper, and `--dataset minesweeper --help` shows those of that data set.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from torchmetrics.functional.classification import binary_auroc

from experiments.layers import Source
from experiments.node_models import NodeNetConfig, check_model, node_net
from experiments.node_training import WHOLE, NodeTraining, accuracy
from experiments.training.command import start
from experiments.training.config import Metric, RunConfig, TrainingConfig
from experiments.training.job import Job
from experiments.training.run import Outcome, fit
from graphs.datasets import heterophilous, planetoid
from graphs.features import row_normalized
from graphs.nodes import NodeData

Dataset = Literal["cora", "citeseer", "minesweeper", "chameleon", "squirrel", "texas"]
Model = Literal["gat", "gatv2", "transformer", "gat-sep"]

CITATIONS = {"cora": "Cora", "citeseer": "CiteSeer"}  # the defaults of both configurations are theirs
RESIDUAL = {
    "training.epochs": 600,
    "training.lr": 1e-3,
    "training.optimizer": "adamw",
    "training.weight_decay": 0.0,
    "training.patience": 150,
    "training.monitor": "score",
    "net.residual": True,
    "net.depth": 5,
    "net.dropout": 0.2,
}
PRESETS = dict.fromkeys(("minesweeper", "chameleon", "squirrel", "texas"), RESIDUAL)


def load(dataset: Dataset) -> NodeData:
    """The graph as its papers use it: citation graphs with normalised bags of words and the public split."""
    if dataset in CITATIONS:
        data = planetoid(CITATIONS[dataset])
        return dataclasses.replace(data, x=row_normalized(data.x))
    return heterophilous(dataset)


def node_classification(
    run: RunConfig,
    dataset: Dataset = "cora",
    model: Model = "gat",
    layers: Source = "unified_attn",
    training: TrainingConfig = TrainingConfig(),  # noqa: B008  # jsonargparse reads the defaults from it
    net: NodeNetConfig = NodeNetConfig(),  # noqa: B008
) -> dict[str, Any]:
    """Trains a node classifier over several seeds; run n takes split n of data sets that have ten.

    Args:
        run: Where and how often.
        dataset: Citations (`cora`, `citeseer`: the public split, accuracy), or graphs whose neighbours often differ in
            class (ten splits, accuracy; `minesweeper`: ROC AUC).
        model: `gat`, `gatv2`, `transformer`; `gat-sep` in residual blocks.
        layers: Whose layers: ours, or torch-geometric's as a baseline with the same seeds.
        training: How it is trained.
        net: Sizes of the network.

    Returns:
        What results.json holds.
    """
    metric = Metric("ROC AUC" if dataset == "minesweeper" else "accuracy")
    settings = {
        "dataset": dataset,
        "model": model,
        "layers": layers,
        "training": dataclasses.asdict(training),
        "net": dataclasses.asdict(net),
    }
    check_model(model, net)
    job = Job(run, f"node_classification/{dataset}-{model}-{layers}", settings, metric)
    data = load(dataset)
    score = accuracy if data.num_classes > 2 else lambda logits, y: binary_auroc(logits[:, 1] - logits[:, 0], y)
    # A graph checked and sorted once, for all layers and steps; torch-geometric's layers take the edges.
    edges = data.graph() if layers == "unified_attn" else data.edge_index
    print(data)

    def one(seed: int, folder: Path) -> Outcome:
        split = data.splits[seed % len(data.splits)]
        made = node_net(data.x.shape[1], data.num_classes, model, net, layers)
        module = NodeTraining(made, (data.x, edges), data.y, split, score, training)
        return fit(module, *WHOLE, training, metric, folder, seed, resume=run.resume, progress=run.progress)

    return job.repeat(one)


if __name__ == "__main__":
    start(node_classification, presets=PRESETS)
