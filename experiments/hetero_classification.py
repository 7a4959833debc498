"""Classifies the nodes of one type in a graph of several node types.

    python -m experiments.hetero_classification --dataset acm --model hgt --seeds 10
    python -m experiments.hetero_classification --dataset acm --model hgt --seeds 10 --layers torch_geometric
    python -m experiments.hetero_classification --dataset imdb --model han --seeds 10

HGT, RGAT and HAN are configurations of one layer, HeteroAttention; the baselines are torch-geometric's HGTConv, GATConv
a relation, and HANConv, in the same model.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torchmetrics.functional.classification import multiclass_f1_score

from experiments.hetero_models import HeteroClassifier, HeteroNetConfig, Model
from experiments.layers import Source
from experiments.node_training import WHOLE, NodeTraining
from experiments.training.command import start
from experiments.training.config import Metric, RunConfig, SettingError, TrainingConfig
from experiments.training.job import Job
from experiments.training.run import Outcome, fit
from graphs.datasets import heterogeneous
from graphs.features import row_normalized
from graphs.hetero import HeteroNodes

F1 = Metric("macro F1")
TRAINING = TrainingConfig(epochs=300, lr=0.005, weight_decay=0.0, patience=50, monitor="score")
LABELS = (20, 40, 60)


def load(dataset: str) -> HeteroNodes:
    """The graph with bags of words of sum 1."""
    data = heterogeneous(dataset.upper())
    return dataclasses.replace(data, x={kind: row_normalized(x) for kind, x in data.x.items()})


def hetero_classification(
    run: RunConfig,
    dataset: Literal["acm", "imdb"] = "acm",
    labels: Literal[20, 40, 60] | None = None,
    model: Model = "hgt",
    layers: Source = "unified_attn",
    training: TrainingConfig = TRAINING,
    net: HeteroNetConfig = HeteroNetConfig(),  # noqa: B008  # jsonargparse reads the defaults from it
) -> dict[str, Any]:
    """Trains a classifier of papers (`acm`) or films (`imdb`) over several seeds.

    Args:
        run: Where and how often.
        dataset: `acm`: papers, authors and subjects; `imdb`: films, directors and actors.
        labels: Training papers a class, `acm` alone; default 20.
        model: `hgt`: one softmax over all relations into a node, a scale a relation. `rgat`: one GAT a relation,
            results summed. `han`: the same, weighed by attention over relations.
        layers: Whose layers: ours, or torch-geometric's as a baseline with the same seeds.
        training: How it is trained.
        net: Sizes of the network.

    Returns:
        What results.json holds.
    """
    if dataset == "imdb" and labels is not None:
        raise SettingError(f"labels is {labels}, but imdb has one split, of 400 training films; leave it out")
    settings = {
        "dataset": dataset,
        "labels": (labels or 20) if dataset == "acm" else None,
        "model": model,
        "layers": layers,
        "training": dataclasses.asdict(training),
        "net": dataclasses.asdict(net),
    }
    job = Job(run, f"hetero_classification/{dataset}-{model}-{layers}", settings, F1)
    data = load(dataset)
    split = data.splits[LABELS.index(settings["labels"]) if dataset == "acm" else 0]
    sizes = {kind: x.shape[1] for kind, x in data.x.items()}
    print(f"{data}, {split}")

    def score(logits: Tensor, y: Tensor) -> Tensor:
        return multiclass_f1_score(logits, y, data.num_classes, average="macro")

    def one(seed: int, folder: Path) -> Outcome:
        made = HeteroClassifier(sizes, data.metadata(), data.target, data.num_classes, model, net, layers)
        module = NodeTraining(made, (data.x, data.edge_index), data.y, split, score, training)
        return fit(module, *WHOLE, training, F1, folder, seed, resume=run.resume, progress=run.progress)

    return job.repeat(one)


if __name__ == "__main__":
    start(hetero_classification)
