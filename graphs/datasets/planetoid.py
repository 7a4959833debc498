"""The citation graphs Cora and CiteSeer."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphs.datasets.files import arrays, check_choice, reading, require, table
from graphs.edges import both_directions, without_loops
from graphs.nodes import NodeData
from graphs.splits import Split

NAMES = ("Cora", "CiteSeer")
SPLITS = ("public", "geom-gcn")
PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
SOURCE = "https://github.com/kimiyoung/planetoid (data)"
SPLITS_SOURCE = "https://github.com/graphdml-uiuc-jlu/geom-gcn (splits)"


def planetoid(name: str, splits: str = "public") -> NodeData:
    """A citation graph: documents with bags of words, edges in both directions, each once, without loops.

    Features are 0 and 1 in Cora and CiteSeer; papers use :func:`graphs.features.row_normalized` on them. CiteSeer's 15
    documents without a record have features 0 and class 0, and are in no public split.

    Args:
        name: "Cora" or "CiteSeer".
        splits: "public": the one of Yang et al., 20 nodes a class, 500, 1000. "geom-gcn": the ten of Pei et al.,
            48, 32 and 20 % of the nodes (their name, 0.6_0.2, is wrong). All of Cora's and splits 4 and 5 of CiteSeer
            leave out what lies outside the largest component (chennnM/GCNII #10).

    Raises:
        ValueError: If an argument is none of its choices, or a file is damaged.
        FileNotFoundError: If files are missing and cannot be downloaded.

    Reference: Yang et al., 2016, arXiv:1603.08861; Pei et al., 2020, arXiv:2002.05287.
    """
    check_choice("name", name, NAMES)
    check_choice("splits", splits, SPLITS)

    def download(root: Path) -> None:
        from torch_geometric.datasets import Planetoid

        Planetoid(str(root / "planetoid"), name)

    files = [f"ind.{name.lower()}.{part}" for part in PARTS]
    path = require(f"planetoid/{name}/raw", files, SOURCE, download)
    x, tx, allx, y, ty, ally, graph = (_unpickled(path / file) for file in files[:-1])
    test = table(path / files[-1], SOURCE, 1)[:, 0]
    train = torch.arange(len(y))
    with reading(path / files[-1], SOURCE):
        public = Split(train, len(train) + torch.arange(500), test.sort().values)
        if int(test.min()) < len(ally) or int(test.max()) >= len(graph):
            raise ValueError(f"it holds {int(test.min())} to {int(test.max())}, of {len(ally)} to {len(graph) - 1}")
    chosen = [public] if splits == "public" else _geom_gcn(name)

    with reading(path, SOURCE):
        for part, features, classes in (("x", x, y), ("tx", tx, ty), ("allx", allx, ally)):
            if features.shape[0] != len(classes):
                raise ValueError(f"{part} has {features.shape[0]} rows and its classes {len(classes)}")
        # Rows of allx are documents 0, 1, ...; row r of tx is document test[r]. Documents in neither have no record.
        features = np.zeros((len(graph), x.shape[1]), dtype=np.float32)
        classes = np.zeros((len(graph), y.shape[1]), dtype=np.int64)
        features[: allx.shape[0]], features[test] = allx.todense(), tx.todense()
        classes[: len(ally)], classes[test] = ally, ty
        ends = np.array([(source, target) for source, targets in graph.items() for target in targets]).T
        return NodeData(
            name=name,
            x=torch.from_numpy(features),
            y=torch.from_numpy(classes.argmax(1)),
            edge_index=both_directions(without_loops(torch.from_numpy(ends)), len(graph)),
            splits=chosen,
            num_classes=y.shape[1],
        )


def _geom_gcn(name: str) -> list[Split]:
    files = [f"{name.lower()}_split_0.6_0.2_{i}.npz" for i in range(10)]
    path = require("planetoid/geom-gcn-splits", files, SPLITS_SOURCE)
    return [split_of(path / file, SPLITS_SOURCE) for file in files]


def split_of(file: Path, source: str) -> Split:
    """One split of Pei et al.'s files: three masks of zeros and ones."""
    masks = arrays(file, source, [f"{part}_mask" for part in ("train", "val", "test")])
    with reading(file, source):
        return Split.from_masks(*(torch.from_numpy(mask) for mask in masks.values()))


class _Unpickler(pickle.Unpickler):
    """Makes the objects that these files hold and no others; SciPy's and NumPy's modules have moved since."""

    def find_class(self, module: str, name: str) -> Any:
        import scipy.sparse

        known = {
            "csr_matrix": scipy.sparse.csr_matrix,
            "_reconstruct": np.zeros(0).__reduce__()[0],
            "ndarray": np.ndarray,
            "dtype": np.dtype,
            "defaultdict": collections.defaultdict,
            "list": list,
        }
        if name not in known:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which these data sets do not hold")
        return known[name]


def _unpickled(file: Path) -> Any:
    with reading(file, SOURCE), file.open("rb") as stream:
        return _Unpickler(stream, encoding="latin1").load()
