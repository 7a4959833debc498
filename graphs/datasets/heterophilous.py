"""Graphs whose neighbours often differ in class."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from graphs.datasets.files import arrays, check_choice, check_finite, reading, require, table
from graphs.datasets.planetoid import split_of
from graphs.edges import both_directions, unique_edges
from graphs.nodes import NodeData
from graphs.splits import Split

NAMES = ("minesweeper", "chameleon", "squirrel", "texas")
SOURCE = "https://github.com/yandex-research/heterophilous-graphs (data)"
ARRAYS = ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")


def heterophilous(name: str) -> NodeData:
    """A graph with ten splits.

    "minesweeper" (two classes, judged by ROC AUC), and "chameleon" and "squirrel" without the duplicates that their
    first versions had, are those of Platonov et al., edges in both directions. "texas" is Pei et al.'s web graph, edges
    as the links point, loops included.

    Args:
        name: "minesweeper", "chameleon", "squirrel" or "texas".

    Raises:
        ValueError: If the name is none of these, or a file is damaged.
        FileNotFoundError: If files are missing and cannot be downloaded.

    Reference: Platonov et al., 2023, arXiv:2302.11640; Pei et al., 2020, arXiv:2002.05287.
    """
    check_choice("name", name, NAMES)
    if name == "texas":
        return _texas()

    def download(root: Path) -> None:
        from torch_geometric.datasets import HeterophilousGraphDataset

        HeterophilousGraphDataset(str(root / "heterophilous/pyg"), "Minesweeper")

    if name == "minesweeper":
        file = require("heterophilous/pyg/minesweeper/raw", ["minesweeper.npz"], SOURCE, download) / "minesweeper.npz"
    else:
        file = require("heterophilous/npz", [f"{name}_filtered.npz"], SOURCE) / f"{name}_filtered.npz"
    raw = {key: torch.from_numpy(value) for key, value in arrays(file, SOURCE, ARRAYS).items()}
    y = raw["node_labels"]
    with reading(file, SOURCE):
        masks = zip(raw["train_masks"], raw["val_masks"], raw["test_masks"], strict=True)
        return NodeData(
            name=name,
            x=raw["node_features"].float(),
            y=y,
            edge_index=both_directions(raw["edges"].t(), len(y)),
            splits=[Split.from_masks(*parts) for parts in masks],
            num_classes=int(y.max()) + 1,
        )


def _texas() -> NodeData:
    def download(root: Path) -> None:
        from torch_geometric.datasets import WebKB

        WebKB(str(root / "heterophilous/pyg"), "Texas")

    splits = [f"texas_split_0.6_0.2_{i}.npz" for i in range(10)]
    files = ["out1_node_feature_label.txt", "out1_graph_edges.txt", *splits]
    source = "https://github.com/graphdml-uiuc-jlu/geom-gcn (new_data/texas and splits)"
    path = require("heterophilous/pyg/texas/raw", files, source, download)
    x, y = _nodes(path / files[0], source)
    edges = table(path / files[1], source, 2, skip=1).t()
    parts = [split_of(path / file, source) for file in splits]
    with reading(path, source):
        return NodeData("texas", x, y, unique_edges(edges, len(y)), parts, int(y.max()) + 1)


def _nodes(file: Path, source: str) -> tuple[Tensor, Tensor]:
    """Features and classes in the order of the nodes' numbers, after a line of titles."""
    with reading(file, source):
        lines = [line.split("\t") for line in file.read_text().splitlines()[1:]]
        rows = sorted((int(number), features.split(","), int(label)) for number, features, label in lines)
        for expected, (number, _, _) in enumerate(rows):
            if number != expected:
                raise ValueError(f"node {min(number, expected)} is missing or there twice")
        x = torch.tensor([[float(value) for value in features] for _, features, _ in rows])
        check_finite("a row", x.numpy())
        return x, torch.tensor([label for _, _, label in rows])
