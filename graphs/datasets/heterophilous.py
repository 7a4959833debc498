"""Graphs whose neighbours often differ in class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from graphs.datasets.files import check_choice, require
from graphs.datasets.planetoid import split_of
from graphs.edges import both_directions, unique_edges
from graphs.nodes import NodeData
from graphs.splits import Split

NAMES = ("minesweeper", "chameleon", "squirrel", "texas")
SOURCE = "https://github.com/yandex-research/heterophilous-graphs (data)"


def heterophilous(name: str) -> NodeData:
    """A graph with ten splits.

    "minesweeper" (two classes, judged by ROC AUC), and "chameleon" and "squirrel" without the duplicates that their
    first versions had, are those of Platonov et al., edges in both directions. "texas" is Pei et al.'s web graph, edges
    as the links point, loops included.

    Args:
        name: "minesweeper", "chameleon", "squirrel" or "texas".

    Raises:
        ValueError: If the name is none of these.
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
    with np.load(file) as arrays:
        raw = {key: torch.from_numpy(value) for key, value in arrays.items()}
    y = raw["node_labels"]
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
    rows = [line.split("\t") for line in (path / files[0]).read_text().splitlines()[1:]]  # number, features, class
    y = torch.tensor([int(row[2]) for row in rows])
    edges = torch.from_numpy(np.loadtxt(path / files[1], dtype=np.int64, skiprows=1))
    return NodeData(
        name="texas",
        x=torch.tensor([[float(value) for value in row[1].split(",")] for row in rows]),
        y=y,
        edge_index=unique_edges(edges.t(), len(y)),
        splits=[split_of(path / file) for file in splits],
        num_classes=int(y.max()) + 1,
    )
