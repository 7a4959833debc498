"""Papers and films with the people around them: ACM and IMDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphs.checks import check_numbers
from graphs.datasets.files import array, arrays, check_choice, check_finite, reading, require, table
from graphs.hetero import HeteroNodes, Relation
from graphs.splits import Split

if TYPE_CHECKING:
    import scipy.sparse

NAMES = ("ACM", "IMDB")
ACM = "https://github.com/liun-online/HeCo (data/acm)"
IMDB = "https://github.com/cynricfu/MAGNN (IMDB, preprocessed)"


def heterogeneous(name: str) -> HeteroNodes:
    """A graph of three node types; relations are named "to" and are there in both directions.

    "ACM" is Wang et al.'s: papers of three classes, authors, and subjects (which have no features: one-hot numbers);
    its splits have 20, 40 and 60 labels a class. "IMDB" is Fu et al.'s: films of three genres, directors and actors.
    Features are as in the files; HeCo and MAGNN normalise rows (:func:`graphs.features.row_normalized`).

    Args:
        name: "ACM" or "IMDB".

    Raises:
        ValueError: If the name is none of these, or a file is damaged.
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
    path = require("hetero/ACM_HeCo", files, ACM)
    y = torch.from_numpy(array(path / "labels.npy", ACM)).long()
    papers, authors = _sparse(path / "p_feat.npz", ACM), _sparse(path / "a_feat.npz", ACM)
    edge_index: dict[Relation, Tensor] = {}
    for kind, file in (("author", "pa.txt"), ("subject", "ps.txt")):  # a line: paper, the other's number
        ends = table(path / file, ACM, 2).t()
        edge_index["paper", "to", kind], edge_index[kind, "to", "paper"] = ends, ends.flip(0)
    parts = [Split(*(_numbers(path / file, len(y)) for file in split)) for split in splits]
    with reading(path, ACM):
        return HeteroNodes(
            name="ACM",
            x={"paper": papers, "author": authors, "subject": torch.eye(int(ends[1].max()) + 1)},
            edge_index=edge_index,
            y=y,
            target="paper",
            splits=parts,
            num_classes=int(y.max()) + 1,
        )


def _imdb() -> HeteroNodes:
    def download(root: Path) -> None:
        from torch_geometric.datasets import IMDB

        IMDB(str(root / "hetero/IMDB"))

    features = {"movie": "features_0.npz", "director": "features_1.npz", "actor": "features_2.npz"}
    files = [*features.values(), "adjM.npz", "labels.npy", "train_val_test_idx.npz"]
    path = require("hetero/IMDB/raw", files, IMDB, download)
    x = {kind: _sparse(path / file, IMDB) for kind, file in features.items()}
    y = torch.from_numpy(array(path / "labels.npy", IMDB)).long()
    parts = arrays(path / files[-1], IMDB, [f"{part}_idx" for part in ("train", "val", "test")])
    with reading(path / files[-1], IMDB):
        split = Split(*(torch.from_numpy(numbers) for numbers in parts.values()))
    bounds = np.cumsum([0, *(len(rows) for rows in x.values())])
    span = {kind: slice(*bounds[i : i + 2]) for i, kind in enumerate(x)}
    edge_index: dict[Relation, Tensor] = {}
    with reading(path / "adjM.npz", IMDB):
        adjacency = _matrix(path / "adjM.npz")  # from row to column, types one after the other
        if adjacency.shape != (bounds[-1], bounds[-1]):
            raise ValueError(f"its shape is {adjacency.shape}; there are {bounds[-1]} nodes")
        for source in x:
            for target in x:
                block = adjacency[span[source], span[target]].tocoo()
                if block.nnz:
                    ends = torch.from_numpy(np.stack([block.row, block.col]).astype(np.int64))
                    edge_index[source, "to", target] = ends
    with reading(path, IMDB):
        return HeteroNodes("IMDB", x, edge_index, y, "movie", [split], int(y.max()) + 1)


def _sparse(file: Path, source: str) -> Tensor:
    with reading(file, source):
        dense = _matrix(file).astype(np.float32).toarray()
        check_finite("the array", dense)
        return torch.from_numpy(dense)


def _matrix(file: Path) -> scipy.sparse.spmatrix:
    import scipy.sparse

    with file.open("rb") as stream:  # given its name, SciPy leaves a cut file open
        return scipy.sparse.load_npz(stream)


def _numbers(file: Path, count: int) -> Tensor:
    numbers = torch.from_numpy(array(file, ACM))
    with reading(file, ACM):
        check_numbers("the array", numbers, count)
    return numbers
