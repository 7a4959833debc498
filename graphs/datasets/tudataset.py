"""Molecules and proteins to be told apart: MUTAG and PROTEINS of the TUDataset collection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from graphs.datasets.files import check_choice, require
from graphs.packed import GraphSet
from graphs.ranges import pointers
from graphs.splits import stratified_folds

ATTRIBUTES = {"MUTAG": ["edge_labels"], "PROTEINS": ["node_attributes"]}  # beside what both have


def tudataset(name: str) -> GraphSet:
    """Graphs of two classes, with ten stratified folds from seed 0 (the collection names no splits).

    Node features are the attributes, where there are some, then the node label, one-hot. Edge labels are edge types.

    Args:
        name: "MUTAG" or "PROTEINS".

    Raises:
        ValueError: If the name is none of these.
        FileNotFoundError: If files are missing and cannot be downloaded.

    Reference: Morris et al., 2020, arXiv:2007.08663.
    """
    check_choice("name", name, list(ATTRIBUTES))

    def download(root: Path) -> None:
        from torch_geometric.datasets import TUDataset

        TUDataset(str(root / "TUDataset"), name)

    parts = ["A", "graph_indicator", "graph_labels", "node_labels", *ATTRIBUTES[name]]
    files = [f"{name}_{part}.txt" for part in parts]
    path = require(f"TUDataset/{name}/raw", files, "https://www.chrsmrrs.com/graphkerneldatasets", download)

    def table(part: str, dtype: type = np.int64) -> Tensor:
        return torch.from_numpy(np.loadtxt(path / f"{name}_{part}.txt", dtype=dtype, delimiter=","))

    batch = table("graph_indicator") - 1  # numbers begin at 1; nodes of a graph follow each other
    node_ptr = pointers(torch.bincount(batch))
    edge_index = table("A").t() - 1
    owner, order = batch[edge_index[0]].sort(stable=True)
    x = one_hot(table("node_labels")).float()
    if "node_attributes" in parts:
        x = torch.cat([table("node_attributes", np.float32).reshape(len(x), -1), x], dim=1)
    classes, y = table("graph_labels").unique(return_inverse=True)
    return GraphSet(
        name=name,
        x=x,
        edge_index=edge_index[:, order] - node_ptr[owner],
        node_ptr=node_ptr,
        edge_ptr=pointers(torch.bincount(owner, minlength=len(y))),
        y=y,
        edge_type=table("edge_labels")[order] if "edge_labels" in parts else None,
        splits=stratified_folds(y),
        num_classes=len(classes),
    )
