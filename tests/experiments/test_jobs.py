"""Each training job on little data, and what it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from experiments import graph_regression, hetero_classification
from experiments.hetero_models import HeteroClassifier, HeteroNetConfig
from experiments.lookup_training import Batches as Dictionaries
from experiments.molecules import Batches, Molecules, RegressionTraining
from experiments.node_classification import PRESETS, node_classification
from experiments.training.command import start
from graphs.dictionary_lookup import dictionary_lookup
from graphs.hetero import HeteroNodes
from graphs.packed import GraphSet
from graphs.paths import shortest_paths
from graphs.ranges import pointers
from graphs.splits import Split
from tests.experiments.jobs import PowerCut, cut_power, rows, same_files
from tests.graphs.tools import data
from unified_attn.models import GraphNetConfig

QUIET = ["--progress", "false", "--training.save_every", "0"]


def papers() -> HeteroNodes:
    """Twelve papers of two classes, each by one author, who keeps to a class; venues say nothing."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(12) % 2
    number = torch.arange(12)
    by = torch.stack([number, number % 4])
    held = torch.stack([number, torch.zeros(12, dtype=torch.int64)])
    edges = {
        ("paper", "to", "author"): by,
        ("author", "to", "paper"): by.flip(0),
        ("paper", "to", "venue"): held,
        ("venue", "to", "paper"): held.flip(0),
    }
    x = {"paper": torch.randn(12, 5, generator=generator), "author": torch.eye(4), "venue": torch.ones(1, 2)}
    return HeteroNodes("papers", x, edges, y, "paper", [Split(*number.split([6, 3, 3]))] * 3, 2)


def hetero(*options: object) -> dict[str, Any]:
    return start(hetero_classification.hetero_classification, [*QUIET, *map(str, options)])


@pytest.mark.parametrize("layers", ["unified_attn", pytest.param("torch_geometric", marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", ["hgt", "rgat", "han"])
def test_typed_nodes_are_learned(model: str, layers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hetero_classification, "load", lambda dataset: papers())
    options = ["--training.epochs", 20, "--training.lr", 0.03, "--training.monitor", "loss"]
    found = hetero("--out", tmp_path, "--model", model, "--layers", layers, "--net.dropout", 0, *options)
    assert found["metric"] == "macro F1"
    assert found["settings"]["labels"] == 20
    assert found["test"]["mean"] == 1.0  # papers of known authors
    assert float(rows(tmp_path / "seed-0")[-1]["train/loss"]) < 0.3


def test_both_attend_by_the_same_sizes() -> None:
    sizes = {"paper": 5, "author": 4, "venue": 2}
    both = [
        HeteroClassifier(sizes, papers().metadata(), "paper", 2, "hgt", HeteroNetConfig(), source)
        for source in ("unified_attn", "torch_geometric")
    ]
    counts = [sum(weight.numel() for weight in net.parameters()) for net in both]
    assert counts[0] == counts[1]


def test_resumed_hetero_job_is_straight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hetero_classification, "load", lambda dataset: papers())
    options = ["--training.epochs", 4, "--dataset", "imdb"]
    hetero("--out", tmp_path / "straight", *options)
    cut_power(monkeypatch, hetero_classification.NodeTraining, 2)
    with pytest.raises(PowerCut):
        hetero("--out", tmp_path / "cut", *options)
    hetero("--out", tmp_path / "cut", "--resume", "true", *options)
    same_files(tmp_path / "straight/seed-0", tmp_path / "cut/seed-0")


def test_labels_belong_to_acm(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        hetero("--out", tmp_path / "out", "--dataset", "imdb", "--labels", 20)
    assert "labels is 20, but imdb has one split" in capsys.readouterr().err


def rings(count: int = 40) -> GraphSet:
    """Rings of atoms of two kinds and bonds of two types; the target is the share of the second type."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 7, (count,), generator=generator)
    edges = [torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]) for n in sizes.tolist()]
    both = [torch.cat([ends, ends.flip(0)], dim=1) for ends in edges]
    types = [torch.randint(1, 3, (n,), generator=generator).repeat(2) for n in sizes.tolist()]
    return GraphSet(
        name="rings",
        x=torch.randint(0, 2, (int(sizes.sum()),), generator=generator),
        edge_index=torch.cat(both, dim=1),
        node_ptr=pointers(sizes),
        edge_ptr=pointers(2 * sizes),
        y=torch.stack([(kind == 2).float().mean() for kind in types]) * 3 - 1,
        edge_type=torch.cat(types),
        splits=[Split(*torch.arange(count).split([24, 8, 8]))],
    )


def regression(*options: object) -> dict[str, Any]:
    small = ["--network.channels", 16, "--network.num_layers", 2, "--network.ff_channels", 16, "--batch", 8]
    return start(graph_regression.graph_regression, [*QUIET, *map(str, [*small, *options])])


LOCAL = ["--network.local", "transformer", "--network.global_attention", "false", "--network.max_distance", 0]


def test_types_of_bonds_are_learned_or_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_regression, "aqsol", rings)
    regression("--out", tmp_path / "with", "--training.epochs", 2)
    regression("--out", tmp_path / "without", "--training.epochs", 2, "--network.num_edge_types", 0)
    seen, blind = (torch.load(tmp_path / part / "seed-0/best.pt") for part in ("with", "without"))
    (own,) = seen.keys() - blind.keys()
    assert own.startswith("net.priors.edge_types")
    assert float(seen[own].abs().min(1).values[1:].max()) > 0  # they start at 0


@pytest.mark.parametrize("monitor", ["loss", "score"])
def test_of_an_error_the_lowest_is_best(monitor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_regression, "aqsol", rings)
    found = regression("--out", tmp_path, "--training.epochs", 3, "--training.monitor", monitor, *LOCAL)
    values = [float(row["val/score"]) for row in rows(tmp_path / "seed-0")]
    assert found["val"]["mean"] == pytest.approx(min(values))


@pytest.mark.parametrize("local", ["gat", "transformer"])
def test_the_baseline_starts_from_the_same_weights(local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_regression, "aqsol", rings)
    options = ["--training.epochs", 2, "--network.dropout", 0, *LOCAL, "--network.local", local]
    ours, theirs = (
        regression("--out", tmp_path / layers, "--layers", layers, *options)
        for layers in ("unified_attn", "torch_geometric")
    )
    assert ours["test"]["mean"] == pytest.approx(theirs["test"]["mean"], rel=1e-3)


def test_resumed_regression_is_straight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_regression, "aqsol", rings)
    regression("--out", tmp_path / "straight", "--training.epochs", 3)
    cut_power(monkeypatch, RegressionTraining, 4)  # three batches an epoch
    with pytest.raises(PowerCut):
        regression("--out", tmp_path / "cut", "--training.epochs", 3)
    regression("--out", tmp_path / "cut", "--training.epochs", 3, "--resume", "true")
    same_files(tmp_path / "straight/seed-0", tmp_path / "cut/seed-0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--network.out_channels", 2], "network.out_channels is 2"),
        (["--network.num_edge_types", 3], "network.num_edge_types is 3"),
        (["--network.walk_length", 3], "network.walk_length is 3"),
        (["--network.num_heads", 5], "num_heads = 5"),
        (["--layers", "torch_geometric"], "network.global_attention false"),
        (["--batch", 0], "batch is 0"),
    ],
)
def test_a_network_that_cannot_be_is_named(
    options: list[object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        regression("--out", tmp_path / "out", *options)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_batch_holds_the_graphs_that_were_asked_for() -> None:
    graphs = rings()
    molecules = Molecules(graphs, graph_regression.NETWORK)
    inputs, y = molecules.batch(torch.tensor([7, 2]))
    assert y.tolist() == graphs.y[[7, 2]].tolist()
    first = 0
    for graph in (7, 2):
        (start, end), (a, b) = (ptr[graph : graph + 2].tolist() for ptr in (graphs.node_ptr, graphs.edge_ptr))
        count = end - start
        expected = shortest_paths(graphs.edge_index[:, a:b], count)
        assert torch.equal(inputs["distance"][first : first + count**2].view(count, count), expected)
        first += count**2
    assert len(inputs["distance"]) == first
    assert set(inputs) == {"x", "edge_index", "batch", "num_graphs", "edge_types", "distance"}
    plain = GraphNetConfig(num_node_types=2, out_channels=1, local="gat")
    assert set(Molecules(graphs, plain).batch(torch.tensor([0]))[0]) == {"x", "edge_index", "batch", "num_graphs"}


def test_every_graph_is_in_one_batch() -> None:
    chosen = torch.arange(3, 20)
    for shuffle in (False, True):
        batches = Batches(Molecules(rings(), graph_regression.NETWORK), chosen, 4, shuffle=shuffle)
        targets = torch.cat([y for _, y in batches])
        assert len(batches) == len(list(batches)) == 5
        assert sorted(targets.tolist()) == sorted(rings().y[chosen].tolist())
        assert (targets.tolist() == rings().y[chosen].tolist()) is not shuffle
    lookups = dictionary_lookup(3)
    seen = torch.cat([x for x, _, _ in Dictionaries(lookups, torch.arange(6), 4, "unified_attn", shuffle=True)])
    assert sorted(seen.flatten(1).tolist()) == sorted(lookups.x.flatten(1).tolist())
    often = Dictionaries(lookups, torch.arange(6), 4, "unified_attn", shuffle=True, steps=3)
    assert len(often) == len(list(often)) == 4
    assert sum(len(x) for x, _, _ in often) == 12


def test_error_is_in_the_units_of_the_target() -> None:
    class Ones(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(x), 1)  # one deviation above the mean

    seen = torch.tensor([1.0, 3.0, 5.0])  # mean 3, deviation 2
    made = RegressionTraining(Ones(), seen, graph_regression.TRAINING)
    assert float(made.error(({"x": torch.zeros(2)}, torch.tensor([5.0, 8.0])))) == pytest.approx(1.5)


def test_cora_is_learned_in_a_few_epochs(tmp_path: Path) -> None:
    data("planetoid/Cora")
    argv = [*QUIET, "--dataset", "cora", "--model", "gatv2", "--training.epochs", "8", "--out", str(tmp_path)]
    found = start(node_classification, [*argv, "--training.lr", "0.02"], PRESETS)
    assert found["test"]["mean"] > 0.5  # of seven classes, the greatest with 30 % of the nodes


def test_one_epoch_of_acm(tmp_path: Path) -> None:
    data("hetero/ACM_HeCo")
    found = hetero("--out", tmp_path, "--labels", 60, "--training.epochs", 1)
    assert found["settings"]["labels"] == 60


def test_codes_of_real_molecules_are_those_that_the_network_knows() -> None:
    data("molecules/AqSol/aqsol.npz")
    molecules = graph_regression.aqsol()
    assert int(molecules.x.max()) == graph_regression.ATOMS - 1
    assert int(molecules.edge_type.max()) == graph_regression.BONDS - 1
    assert one_hot(molecules.edge_type[:4], graph_regression.BONDS).shape == (4, 5)
