"""Names that are none, files that are missing, downloads."""

import io
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from graphs.datasets import aqsol, heterogeneous, heterophilous, planetoid, tudataset
from graphs.datasets.files import require
from graphs.datasets.planetoid import _Unpickler
from tests.graphs.tools import data


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("UNIFIED_ATTN_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: planetoid("cora"), "name is 'cora'; choose one of 'Cora', 'CiteSeer'"),
        (lambda: planetoid("Cora", "random"), "splits is 'random'; choose one of 'public', 'geom-gcn'"),
        (lambda: heterophilous("wisconsin"), "choose one of 'minesweeper', 'chameleon', 'squirrel', 'texas'"),
        (lambda: tudataset("ENZYMES"), "choose one of 'MUTAG', 'PROTEINS'"),
        (lambda: heterogeneous("DBLP"), "choose one of 'ACM', 'IMDB'"),
    ],
)
def test_a_wrong_name_lists_the_choices(call, message, empty):
    with pytest.raises(ValueError, match=message):
        call()
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "place", "file", "source"),
    [
        (lambda: heterophilous("chameleon"), "heterophilous/npz", "chameleon_filtered.npz", "heterophilous-graphs"),
        (lambda: heterogeneous("ACM"), "hetero/ACM_HeCo", "p_feat.npz", "liun-online/HeCo"),
        (aqsol, "molecules/AqSol", "aqsol.npz", "benchmarking-gnns"),
    ],
)
def test_a_file_without_a_download_is_named_with_its_place_and_source(call, place, file, source, empty):
    with pytest.raises(FileNotFoundError) as caught:
        call()
    (line,) = str(caught.value).splitlines()
    for part in (file, str(empty / place), source, "UNIFIED_ATTN_DATA"):
        assert part in line


@pytest.mark.parametrize(
    ("call", "theirs", "arguments", "place"),
    [
        (lambda: planetoid("CiteSeer"), "Planetoid", ["planetoid", "CiteSeer"], "planetoid/CiteSeer/raw"),
        (lambda: tudataset("MUTAG"), "TUDataset", ["TUDataset", "MUTAG"], "TUDataset/MUTAG/raw"),
        (lambda: heterogeneous("IMDB"), "IMDB", ["hetero/IMDB"], "hetero/IMDB/raw"),
        (lambda: heterophilous("texas"), "WebKB", ["heterophilous/pyg", "Texas"], "heterophilous/pyg/texas/raw"),
        (
            lambda: heterophilous("minesweeper"),
            "HeterophilousGraphDataset",
            ["heterophilous/pyg", "Minesweeper"],
            "heterophilous/pyg/minesweeper/raw",
        ),
    ],
)
def test_a_missing_file_is_downloaded_by_torch_geometric(call, theirs, arguments, place, empty, monkeypatch):
    datasets = pytest.importorskip("torch_geometric.datasets")
    calls = []

    def refused(*given):
        calls.append(given)
        raise OSError("no network")

    monkeypatch.setattr(datasets, theirs, refused)
    with pytest.raises(FileNotFoundError) as caught:
        call()
    assert calls == [(str(empty / arguments[0]), *arguments[1:])]
    assert str(empty / place) in str(caught.value)
    assert str(caught.value.__cause__) == "no network"


def test_what_torch_geometric_downloads_lies_where_it_is_looked_for(tmp_path, monkeypatch):
    """The whole way on an empty folder, but for the network."""
    stored = data("planetoid/Cora/raw")
    fs = pytest.importorskip("torch_geometric.io").fs
    monkeypatch.setattr(
        fs, "cp", lambda url, to: shutil.copyfile(stored / url.split("/")[-1], f"{to}/{Path(url).name}")
    )
    expected = planetoid("Cora")
    monkeypatch.setenv("UNIFIED_ATTN_DATA", str(tmp_path))
    assert torch.equal(planetoid("Cora").edge_index, expected.edge_index)
    assert sorted(path.name for path in (tmp_path / "planetoid/Cora/raw").iterdir()) == sorted(os.listdir(stored))


def test_what_is_downloaded_is_used(empty):
    def download(root):
        (root / "place").mkdir()
        (root / "place" / "file.txt").write_text("x")

    with pytest.raises(FileNotFoundError, match=r"no file\.txt, other\.txt in"):
        require("place", ["file.txt", "other.txt"], "nowhere")
    assert require("place", ["file.txt"], "nowhere", download) == empty / "place"
    assert require("place", ["file.txt"], "nowhere", pytest.fail) == empty / "place"
    with pytest.raises(FileNotFoundError, match=r"no other\.txt in"):
        require("place", ["file.txt", "other.txt"], "nowhere", lambda root: None)


def test_without_the_variable_the_folder_is_data(monkeypatch, tmp_path):
    monkeypatch.delenv("UNIFIED_ATTN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no aqsol\.npz in data/molecules/AqSol: fetch from"):
        aqsol()


@pytest.mark.parametrize(("value", "folder"), [("", "data"), ("~/sets", "/home/someone/sets")])
def test_an_empty_variable_is_as_none_and_a_tilde_is_the_home(value, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("UNIFIED_ATTN_DATA", value)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"no aqsol\.npz in {folder}/molecules/AqSol: fetch from"):
        aqsol()


def test_a_pickle_makes_arrays_and_nothing_else():
    kept = _Unpickler(io.BytesIO(pickle.dumps({"a": np.arange(3)})), encoding="latin1").load()
    assert torch.equal(torch.from_numpy(kept["a"]), torch.arange(3))
    with pytest.raises(pickle.UnpicklingError, match=r"asks for .*system"):
        _Unpickler(io.BytesIO(b"cos\nsystem\n(S'true'\ntR."), encoding="latin1").load()
