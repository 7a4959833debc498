"""Papers and films with the people around them: ACM and IMDB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphs.datasets.files import check_choice, require
from graphs.hetero import HeteroNodes, Relation
from graphs.splits import Split

NAMES = ("ACM", "IMDB")


def heterogeneous(name: str) -> HeteroNodes:
    """A graph of three node types; relations are named "to" and are there in both directions.

    "ACM" is Wang et al.'s: papers of three classes, authors, and subjects (which have no features: one-hot numbers);
    its splits have 20, 40 and 60 labels a class. "IMDB" is Fu et al.'s: films of three genres, directors and actors.
    Features are as in the files; HeCo and MAGNN normalise rows (:func:`graphs.features.row_normalized`).

    Args:
        name: "ACM" or "IMDB".

    Raises:
        ValueError: If the name is none of these.
        FileNotFoundError: If files are missing and cannot be downloaded.

    Reference: Wang et al., 2021, arXiv:2105.09111; Fu et al., 2020, arXiv:2002.01680.
    """
    check_choice("name", name, NAMES)
    return _acm() if name == "ACM" else _imdb()


def _acm() -> HeteroNodes:
    splits = [[f"{part}_{labels}.npy" for part in ("train", "val", "test")] for labels in (20, 40, 60)]
    files = [
        "p_feat.npz",
        "a_feat.npz",
        "pa.txt",
        "ps.txt",
        "labels.npy",
        *(file for split in splits for file in split),
    ]
    path = require("hetero/ACM_HeCo", files, "https://github.com/liun-online/HeCo (data/acm)")
    y = torch.from_numpy(np.load(path / "labels.npy")).long()
    edge_index: dict[Relation, Tensor] = {}
    for kind, file in (("author", "pa.txt"), ("subject", "ps.txt")):  # a line: paper, the other's number
        ends = torch.from_numpy(np.loadtxt(path / file, dtype=np.int64)).t()
        edge_index["paper", "to", kind], edge_index[kind, "to", "paper"] = ends, ends.flip(0)
    return HeteroNodes(
        name="ACM",
        x={
            "paper": _sparse(path / "p_feat.npz"),
            "author": _sparse(path / "a_feat.npz"),
            "subject": torch.eye(int(edge_index["paper", "to", "subject"][1].max()) + 1),
        },
        edge_index=edge_index,
        y=y,
        target="paper",
        splits=[Split(*(torch.from_numpy(np.load(path / file)).long() for file in split)) for split in splits],
        num_classes=int(y.max()) + 1,
    )


def _imdb() -> HeteroNodes:
    import scipy.sparse

    def download(root: Path) -> None:
        from torch_geometric.datasets import IMDB

        IMDB(str(root / "hetero/IMDB"))

    features = {"movie": "features_0.npz", "director": "features_1.npz", "actor": "features_2.npz"}
    files = [*features.values(), "adjM.npz", "labels.npy", "train_val_test_idx.npz"]
    path = require("hetero/IMDB/raw", files, "https://github.com/cynricfu/MAGNN (IMDB, preprocessed)", download)
    x = {kind: _sparse(path / file) for kind, file in features.items()}
    bounds = np.cumsum([0, *(len(rows) for rows in x.values())])
    span = {kind: slice(*bounds[i : i + 2]) for i, kind in enumerate(x)}
    adjacency = scipy.sparse.load_npz(path / "adjM.npz")  # from row to column, types one after the other
    edge_index: dict[Relation, Tensor] = {}
    for source in x:
        for target in x:
            block = adjacency[span[source], span[target]].tocoo()
            if block.nnz:
                edge_index[source, "to", target] = torch.from_numpy(np.stack([block.row, block.col]).astype(np.int64))
    y = torch.from_numpy(np.load(path / "labels.npy")).long()
    with np.load(path / "train_val_test_idx.npz") as parts:
        split = Split(*(torch.from_numpy(parts[f"{part}_idx"]).long() for part in ("train", "val", "test")))
    return HeteroNodes("IMDB", x, edge_index, y, "movie", [split], int(y.max()) + 1)


def _sparse(file: Path) -> Tensor:
    import scipy.sparse

    return torch.from_numpy(scipy.sparse.load_npz(file).astype(np.float32).toarray())
