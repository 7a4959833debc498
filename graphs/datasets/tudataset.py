"""Molecules and proteins to be told apart: MUTAG and PROTEINS of the TUDataset collection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from graphs.checks import checked_edges
from graphs.datasets.files import check_choice, reading, require, table
from graphs.packed import GraphSet
from graphs.ranges import pointers
from graphs.splits import stratified_folds

ATTRIBUTES = {"MUTAG": ["edge_labels"], "PROTEINS": ["node_attributes"]}  # beside what both have
SAME_LENGTH = {"edge_labels": "A", "node_labels": "graph_indicator", "node_attributes": "graph_indicator"}
SOURCE = "https://www.chrsmrrs.com/graphkerneldatasets"


def tudataset(name: str) -> GraphSet:
    """Graphs of two classes, with ten stratified folds from seed 0 (the collection names no splits).

    Node features are the attributes, where there are some, then the node label, one-hot. Edge labels are edge types.

    Args:
        name: "MUTAG" or "PROTEINS".

    Raises:
        ValueError: If the name is none of these, or files are damaged or do not belong together.
        FileNotFoundError: If files are missing and cannot be downloaded.

    Reference: Morris et al., 2020, arXiv:2007.08663.
    """
    check_choice("name", name, list(ATTRIBUTES))

    def download(root: Path) -> None:
        from torch_geometric.datasets import TUDataset

        TUDataset(str(root / "TUDataset"), name)

    parts = ["A", "graph_indicator", "graph_labels", "node_labels", *ATTRIBUTES[name]]
    files = {part: f"{name}_{part}.txt" for part in parts}
    path = require(f"TUDataset/{name}/raw", list(files.values()), SOURCE, download)

    def column(part: str) -> Tensor:
        return table(path / files[part], SOURCE, 1, dtype=np.float32 if part == "node_attributes" else np.int64)[:, 0]

    ends = table(path / files["A"], SOURCE, 2, delimiter=",").t() - 1  # numbers begin at 1
    batch, labels = column("graph_indicator") - 1, column("graph_labels")
    rows = {part: column(part) for part in ("node_labels", *ATTRIBUTES[name])}
    lengths = {"A": ends.shape[1], "graph_indicator": len(batch)} | {part: len(values) for part, values in rows.items()}
    with reading(path, SOURCE):
        for part, other in SAME_LENGTH.items():
            if part in rows and lengths[part] != lengths[other]:
                raise ValueError(f"{files[part]} has {lengths[part]} rows and {files[other]} has {lengths[other]}")
    with reading(path / files["graph_indicator"], SOURCE):
        if int(batch[0]) or bool((batch.diff() < 0).any()):
            raise ValueError("it must begin at 1 and never fall, nodes of a graph following each other")
        if int(batch[-1]) + 1 != len(labels):
            raise ValueError(f"it ends with graph {int(batch[-1]) + 1}, and {files['graph_labels']} has {len(labels)}")
    with reading(path / files["A"], SOURCE):
        edge_index = checked_edges(ends, len(batch))

    with reading(path, SOURCE):
        node_ptr = pointers(torch.bincount(batch))
        owner, order = batch[edge_index[0]].sort(stable=True)
        x = one_hot(rows["node_labels"]).float()
        if "node_attributes" in rows:
            x = torch.cat([rows["node_attributes"][:, None], x], dim=1)
        classes, y = labels.unique(return_inverse=True)
        return GraphSet(
            name=name,
            x=x,
            edge_index=edge_index[:, order] - node_ptr[owner],
            node_ptr=node_ptr,
            edge_ptr=pointers(torch.bincount(owner, minlength=len(y))),
            y=y,
            edge_type=rows["edge_labels"][order] if "edge_labels" in rows else None,
            splits=stratified_folds(y),
            num_classes=len(classes),
        )
