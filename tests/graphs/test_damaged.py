"""Files that are cut, empty, something else or at odds with each other: the error names them and where to get them."""

import io

import numpy as np
import pytest
import torch

from graphs.datasets import aqsol, heterogeneous, heterophilous, planetoid, tudataset
from tests.graphs.tools import data

CORA = (lambda: planetoid("Cora"), "planetoid/Cora/raw", "kimiyoung/planetoid")
MUTAG = (lambda: tudataset("MUTAG"), "TUDataset/MUTAG/raw", "chrsmrrs.com")
PROTEINS = (lambda: tudataset("PROTEINS"), "TUDataset/PROTEINS/raw", "chrsmrrs.com")
ACM = (lambda: heterogeneous("ACM"), "hetero/ACM_HeCo", "liun-online/HeCo")
IMDB = (lambda: heterogeneous("IMDB"), "hetero/IMDB/raw", "cynricfu/MAGNN")
CHAMELEON = (lambda: heterophilous("chameleon"), "heterophilous/npz", "yandex-research/heterophilous-graphs")
TEXAS = (lambda: heterophilous("texas"), "heterophilous/pyg/texas/raw", "graphdml-uiuc-jlu/geom-gcn")
AQSOL = (aqsol, "molecules/AqSol", "benchmarking-gnns")
NODES = "out1_node_feature_label.txt"


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Puts links to a data set's files into a folder of their own, and a file with other contents among them."""

    def change(place, file, contents):
        source = data(place)
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for path in source.iterdir():
            if path.name != file:
                (folder / path.name).symlink_to(path.resolve())
        (folder / file).write_bytes(contents((source / file).read_bytes()))
        monkeypatch.setenv("UNIFIED_ATTN_DATA", str(tmp_path))

    return change


def cut(raw):
    return raw[: len(raw) // 2]


def empty(raw):
    return b""


def page(raw):
    return b"<!DOCTYPE html>\n<html><body>404: Not Found</body></html>\n"


def lines(change):
    """A change of a file's lines."""
    return lambda raw: b"".join(change(raw.splitlines(keepends=True)))


def entries(change):
    """A change of an archive's arrays, in place."""

    def write(raw):
        with np.load(io.BytesIO(raw)) as archive:
            arrays = dict(archive)
        change(arrays)
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    return write


def values(change):
    """A change of an array, in place."""

    def write(raw):
        array = np.load(io.BytesIO(raw))
        change(array)
        stream = io.BytesIO()
        np.save(stream, array)
        return stream.getvalue()

    return write


def put(at, value):
    return lambda array: array.__setitem__(at, value)


@pytest.mark.parametrize(
    ("dataset", "file", "change", "reason"),
    [
        (CORA, "ind.cora.allx", cut, "pickle data was truncated"),
        (CORA, "ind.cora.graph", empty, "Ran out of input"),
        (CORA, "ind.cora.y", page, "invalid load key, '<'"),
        (CORA, "ind.cora.test.index", empty, "contained no data"),
        (CORA, "ind.cora.test.index", lines(lambda rows: [rows[1], *rows[1:]]), "holds 2532 more than once, in test"),
        (CORA, "ind.cora.test.index", lines(lambda rows: [b"1000\n", *rows[1:]]), "it holds 1000 to 2707, of 1708 to"),
        (MUTAG, "MUTAG_A.txt", empty, "contained no data"),
        (MUTAG, "MUTAG_A.txt", page, "could not convert string"),
        (MUTAG, "MUTAG_A.txt", lines(lambda rows: [b"1, 9999\n", *rows[1:]]), r"edge_index\[1\]\[0\] is 9998"),
        (MUTAG, "MUTAG_A.txt", lines(lambda rows: [b"0, 1\n", *rows[1:]]), r"edge_index\[0\]\[0\] is -1"),
        (MUTAG, "MUTAG_graph_indicator.txt", lines(lambda rows: rows[::-1]), "it must begin at 1 and never fall"),
        (MUTAG, "MUTAG_graph_labels.txt", lines(lambda rows: [b"1 1\n"] * 188), "a row has 2 numbers; it must have 1"),
        (PROTEINS, "PROTEINS_node_attributes.txt", lines(lambda rows: [b"nan\n", *rows[1:]]), "a row holds nan"),
        (ACM, "train_20.npy", values(put(0, 99999)), r"the array\[0\] is 99999; it must lie in 0\.\.4018"),
        (ACM, "labels.npy", cut, "cannot reshape|Failed to read"),
        (ACM, "p_feat.npz", cut, "File is not a zip file"),
        (ACM, "pa.txt", lines(lambda rows: [*rows[:-1], b"5\n"]), "the number of columns changed"),
        (IMDB, "adjM.npz", page, "allow_pickle"),
        (IMDB, "train_val_test_idx.npz", entries(lambda found: found.pop("val_idx")), "val_idx"),
        (CHAMELEON, "chameleon_filtered.npz", cut, "File is not a zip file"),
        (CHAMELEON, "chameleon_filtered.npz", empty, "No data left in file"),
        (CHAMELEON, "chameleon_filtered.npz", entries(lambda found: found["edges"].fill(890)), r"is 890; it must lie"),
        (TEXAS, NODES, lines(lambda rows: rows[:5] + rows[6:]), "node 4 is missing or there twice"),
        (TEXAS, NODES, lines(lambda rows: [*rows, rows[3]]), "node 2 is missing or there twice"),
        (TEXAS, NODES, lines(lambda rows: [*rows[:-1], rows[-1][:50]]), "not enough values to unpack"),
        (
            TEXAS,
            "texas_split_0.6_0.2_3.npz",
            entries(lambda found: found["val_mask"].fill(1)),
            "holds 0 more than once, in val and test",
        ),
        (AQSOL, "aqsol.npz", entries(lambda found: put(7, np.nan)(found["train_y"])), "train_y holds nan; all must be"),
        (AQSOL, "aqsol.npz", entries(lambda found: found.pop("train_y")), "train_y is not a file in the archive"),
    ],
)
def test_a_damaged_file_is_named_with_its_source(dataset, file, change, reason, changed, tmp_path):
    load, place, source = dataset
    changed(place, file, change)
    with pytest.raises(ValueError, match=reason) as caught:
        load()
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{tmp_path / place / file} is damaged or not what it should be: ")
    assert "; fetch it anew from https://" in line
    assert source in line
    assert line.count("is damaged") == 1


@pytest.mark.parametrize(
    ("dataset", "file", "change", "reason"),
    [
        (
            MUTAG,
            "MUTAG_A.txt",
            lambda rows: rows[:-10],
            r"MUTAG_edge_labels\.txt has 7442 rows and MUTAG_A\.txt has 7432",
        ),
        (MUTAG, "MUTAG_edge_labels.txt", lambda rows: [*rows, b"0\n"], r"has 7443 rows and MUTAG_A\.txt has 7442"),
        (
            MUTAG,
            "MUTAG_node_labels.txt",
            lambda rows: rows[:-1],
            r"has 3370 rows and MUTAG_graph_indicator\.txt has 3371",
        ),
        (
            PROTEINS,
            "PROTEINS_node_attributes.txt",
            lambda rows: rows[:-1],
            r"has 43470 rows and PROTEINS_graph_indicator",
        ),
        (
            MUTAG,
            "MUTAG_graph_labels.txt",
            lambda rows: rows[:-1],
            r"ends with graph 188, and MUTAG_graph_labels\.txt has 187",
        ),
        (TEXAS, "out1_graph_edges.txt", lambda rows: [*rows, b"3\t183\n"], r"edge_index\[1\]\[325\] is 183"),
        (TEXAS, NODES, lambda rows: rows[:-3], "it must lie in 0..179"),
    ],
)
def test_files_that_do_not_belong_together_are_named_with_their_folder(
    dataset, file, change, reason, changed, tmp_path
):
    load, place, source = dataset
    changed(place, file, lines(change))
    with pytest.raises(ValueError, match=reason) as caught:
        load()
    (line,) = str(caught.value).splitlines()
    assert line.startswith(str(tmp_path / place))
    assert source in line


def test_nodes_of_texas_have_the_numbers_of_their_lines(changed):
    data(TEXAS[1])
    expected = heterophilous("texas")
    changed(TEXAS[1], NODES, lines(lambda rows: [rows[0], *rows[:0:-1]]))
    found = heterophilous("texas")
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.y, expected.y)


def test_a_file_that_may_not_be_read_is_not_called_damaged(changed, monkeypatch):
    changed(AQSOL[1], "aqsol.npz", lambda raw: raw)

    def refused(*arguments):
        raise PermissionError("not yours")

    monkeypatch.setattr(np, "load", refused)
    with pytest.raises(PermissionError, match="not yours"):
        aqsol()
