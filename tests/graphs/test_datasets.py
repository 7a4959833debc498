"""The public data sets: their published numbers, and the same contents as torch-geometric's own loaders give."""

import os
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from graphs.datasets import aqsol, heterogeneous, heterophilous, planetoid, tudataset
from graphs.hetero import HeteroNodes
from graphs.nodes import NodeData
from tests.graphs.tools import data

PLACES = {
    "Cora": "planetoid/Cora",
    "CiteSeer": "planetoid/CiteSeer",
    "minesweeper": "heterophilous/pyg/minesweeper",
    "texas": "heterophilous/pyg/texas",
    "chameleon": "heterophilous/npz/chameleon_filtered.npz",
    "squirrel": "heterophilous/npz/squirrel_filtered.npz",
    "MUTAG": "TUDataset/MUTAG",
    "PROTEINS": "TUDataset/PROTEINS",
    "ACM": "hetero/ACM_HeCo",
    "IMDB": "hetero/IMDB",
}


@pytest.fixture
def copied(tmp_path):
    """Copies a data set for torch-geometric, which writes beside what it reads; gives the folder above it."""

    def copy(name):
        source = data(PLACES[name])
        shutil.copytree(source / "raw", tmp_path / source.name / "raw", copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(tmp_path):
            os.chmod(folder, 0o755)  # the original may be read-only
        return str(tmp_path)

    return copy


def edges(edge_index):
    """One number an edge, ascending: equal lists have the same edges, as often."""
    return (edge_index[0] * 1_000_000 + edge_index[1]).sort().values.tolist()


def check_split(split, count):
    """Parts do not overlap and lie in range."""
    joined = torch.cat([split.train, split.val, split.test])
    assert joined.dtype == torch.int64
    assert len(joined.unique()) == len(joined)
    assert 0 <= int(joined.min()) <= int(joined.max()) < count


def sizes(split):
    return len(split.train), len(split.val), len(split.test)


NODE_DATA = {  # nodes, edges, features, classes, first split, whether edges go both ways
    "Cora": (planetoid, 2708, 10556, 1433, 7, (140, 500, 1000), True),
    "CiteSeer": (planetoid, 3327, 9104, 3703, 6, (120, 500, 1000), True),
    "minesweeper": (heterophilous, 10000, 78804, 7, 2, (5000, 2500, 2500), True),
    "chameleon": (heterophilous, 890, 2 * 8854, 2325, 5, (409, 287, 194), True),
    "squirrel": (heterophilous, 2223, 2 * 46998, 2089, 5, (1053, 718, 452), True),
    "texas": (heterophilous, 183, 325, 1703, 5, (87, 59, 37), False),
}


@pytest.mark.parametrize("name", NODE_DATA)
def test_node_data_have_their_published_numbers(name):
    load, nodes, count, features, classes, split, symmetric = NODE_DATA[name]
    data(PLACES[name])
    found = load(name)
    assert isinstance(found, NodeData)
    assert found.x.shape == (nodes, features)
    assert found.x.dtype == torch.float32
    assert found.y.unique().tolist() == list(range(classes)) == list(range(found.num_classes))
    listed = edges(found.edge_index)
    assert len(set(listed)) == found.edge_index.shape[1] == count
    assert (edges(found.edge_index.flip(0)) == listed) == symmetric
    assert len(found.splits) == (1 if load is planetoid else 10)
    assert sizes(found.splits[0]) == split
    for part in found.splits:
        check_split(part, nodes)


def test_the_public_split_has_twenty_nodes_a_class():
    for name in ("Cora", "CiteSeer"):
        data(PLACES[name])
        found = planetoid(name)
        assert torch.bincount(found.y[found.splits[0].train]).tolist() == [20] * found.num_classes


LARGEST = {"Cora": range(10), "CiteSeer": [4, 5]}  # splits of the largest component alone


@pytest.mark.parametrize("name", LARGEST)
def test_the_splits_of_geom_gcn_are_ten_and_those_of_their_files(name):
    data(PLACES[name])
    path = data("planetoid/geom-gcn-splits")
    found = planetoid(name, "geom-gcn")
    assert len(found.splits) == 10
    assert len({tuple(split.test.tolist()) for split in found.splits}) == 10
    ends = found.edge_index.numpy()
    adjacency = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(found.num_nodes,) * 2)
    component = connected_components(adjacency, directed=False)[1]
    largest = (component == np.bincount(component).argmax()).nonzero()[0]
    for i, split in enumerate(found.splits):
        check_split(split, found.num_nodes)
        covered = largest if i in LARGEST[name] else np.arange(found.num_nodes)
        assert torch.cat([split.train, split.val, split.test]).sort().values.tolist() == covered.tolist()
        shares = [size / len(covered) for size in sizes(split)]
        assert shares == pytest.approx([0.48, 0.32, 0.20], abs=0.001)
        with np.load(path / f"{name.lower()}_split_0.6_0.2_{i}.npz") as masks:
            for part in ("train", "val", "test"):
                assert getattr(split, part).tolist() == masks[f"{part}_mask"].nonzero()[0].tolist()


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "minesweeper", "texas"])
def test_node_data_are_torch_geometrics(name, copied):
    root = copied(name)
    datasets = pytest.importorskip("torch_geometric.datasets")
    theirs = {
        "Cora": datasets.Planetoid,
        "CiteSeer": datasets.Planetoid,
        "minesweeper": datasets.HeterophilousGraphDataset,
        "texas": datasets.WebKB,
    }[name](root, name)[0]
    ours = NODE_DATA[name][0](name)
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.y, theirs.y)
    assert edges(ours.edge_index) == edges(theirs.edge_index)
    for part in ("train", "val", "test"):
        mask = theirs[f"{part}_mask"].reshape(len(ours.y), -1)
        assert mask.shape[1] == len(ours.splits)
        for split, column in zip(ours.splits, mask.t(), strict=True):
            assert torch.equal(getattr(split, part).sort().values, column.nonzero()[:, 0])


@pytest.mark.parametrize(
    ("name", "graphs", "nodes", "count", "features", "types"),
    [("MUTAG", 188, 3371, 7442, 7, 4), ("PROTEINS", 1113, 43471, 162088, 4, None)],
)
def test_collections_have_their_published_numbers_and_torch_geometrics_graphs(
    name, graphs, nodes, count, features, types, copied
):
    root = copied(name)
    ours = tudataset(name)
    assert (len(ours), ours.num_classes) == (graphs, 2)
    assert ours.x.shape == (nodes, features)
    assert ours.edge_index.shape == (2, count)
    assert len(ours.splits) == 10
    for split in ours.splits:
        check_split(split, graphs)
        assert sum(sizes(split)) == graphs
    datasets = pytest.importorskip("torch_geometric.datasets")
    theirs = datasets.TUDataset(root, name, use_node_attr=True)
    assert torch.equal(ours.y, theirs.y)
    for i in [0, 1, 57, graphs - 1]:
        one, other = ours.batch([i]), theirs[i]
        assert torch.equal(one.x, other.x)
        assert edges(one.edge_index) == edges(other.edge_index)
        if types is None:
            assert one.edge_type is None
        else:
            found = dict(zip(map(tuple, one.edge_index.t().tolist()), one.edge_type.tolist(), strict=True))
            given = zip(map(tuple, other.edge_index.t().tolist()), other.edge_attr.argmax(1).tolist(), strict=True)
            assert found == dict(given)


def test_aqsol_has_its_published_numbers_and_the_contents_of_its_file():
    path = data("molecules/AqSol/aqsol.npz")
    ours = aqsol()
    assert sizes(ours.splits[0]) == (7985, 998, 999)
    check_split(ours.splits[0], len(ours))
    assert ours.num_classes is None
    assert ours.y.dtype == torch.float32
    assert (int(ours.x.max()), int(ours.edge_type.min()), int(ours.edge_type.max())) == (64, 1, 4)
    with np.load(path) as raw:
        for part, number in (("train", 0), ("train", 7984), ("val", 3), ("test", 998)):
            one = ours.batch(getattr(ours.splits[0], part)[number][None])
            node = slice(*raw[f"{part}_node_ptr"][number : number + 2])
            edge = slice(*raw[f"{part}_edge_ptr"][number : number + 2])
            assert one.x.tolist() == raw[f"{part}_atom"][node].tolist()
            assert one.edge_type.tolist() == raw[f"{part}_bond"][edge].tolist()
            assert one.edge_index.tolist() == raw[f"{part}_edge_index"][:, edge].tolist()
            assert one.y.item() == pytest.approx(raw[f"{part}_y"][number], rel=1e-6)


def test_bonds_of_molecules_go_both_ways():
    data("molecules/AqSol/aqsol.npz")
    batch = aqsol().batch(range(500))
    forward = Counter(zip(*batch.edge_index.tolist(), batch.edge_type.tolist(), strict=True))
    backward = Counter(zip(*batch.edge_index.flip(0).tolist(), batch.edge_type.tolist(), strict=True))
    assert forward == backward


def test_acm_has_its_published_numbers():
    data(PLACES["ACM"])
    found = heterogeneous("ACM")
    assert isinstance(found, HeteroNodes)
    assert {kind: tuple(x.shape) for kind, x in found.x.items()} == {
        "paper": (4019, 1902),
        "author": (7167, 1902),
        "subject": (60, 60),
    }
    assert {relation: ends.shape[1] for relation, ends in found.edge_index.items()} == {
        ("paper", "to", "author"): 13407,
        ("author", "to", "paper"): 13407,
        ("paper", "to", "subject"): 4019,
        ("subject", "to", "paper"): 4019,
    }
    for source, _, target in found.edge_index:
        there, back = found.edge_index[source, "to", target], found.edge_index[target, "to", source]
        assert torch.equal(there, back.flip(0))
    assert found.target == "paper"
    assert found.y.unique().tolist() == [0, 1, 2]
    assert [sizes(split) for split in found.splits] == [(labels * 3, 1000, 1000) for labels in (20, 40, 60)]
    for split, labels in zip(found.splits, (20, 40, 60), strict=True):
        check_split(split, 4019)
        assert torch.bincount(found.y[split.train]).tolist() == [labels] * 3


def test_imdb_has_its_published_numbers_and_torch_geometrics_contents(copied):
    root = copied("IMDB")
    ours = heterogeneous("IMDB")
    assert {kind: len(x) for kind, x in ours.x.items()} == {"movie": 4278, "director": 2081, "actor": 5257}
    assert ours.x["movie"].shape[1] == 3066
    assert [sizes(split) for split in ours.splits] == [(400, 400, 3478)]
    assert ours.num_classes == 3
    datasets = pytest.importorskip("torch_geometric.datasets")
    theirs = datasets.IMDB(f"{root}/IMDB")[0]
    assert ours.metadata() == theirs.metadata()
    for kind, x in ours.x.items():
        assert torch.equal(x, theirs[kind].x)
    for relation, ends in ours.edge_index.items():
        assert edges(ends) == edges(theirs[relation].edge_index)
    assert torch.equal(ours.y, theirs["movie"].y)
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(ours.splits[0], part).sort().values, theirs["movie"][f"{part}_mask"].nonzero()[:, 0])


def test_loading_writes_nothing():
    root = data("planetoid/Cora")
    before = sorted(root.rglob("*"))
    planetoid("Cora")
    assert sorted(root.rglob("*")) == before
    assert not (root / "processed").exists()
