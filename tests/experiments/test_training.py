"""What all training jobs share: resuming, stopping, results, options."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from experiments import dictionary_lookup, node_classification
from experiments.lookup_models import LookupNet
from experiments.lookup_training import LookupTraining, share_right
from experiments.node_training import NodeTraining
from experiments.training.callbacks import Schedule
from experiments.training.command import start
from experiments.training.config import Metric, RunConfig, TrainingConfig
from experiments.training.job import Job, command
from tests.experiments.jobs import PowerCut, cut_power, rows, same_files, small_graph

QUIET = ["--progress", "false", "--training.save_every", "0"]


@pytest.fixture(autouse=True)
def ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_classification, "load", lambda dataset: small_graph())


def nodes(*options: object) -> dict:
    argv = [*QUIET, *map(str, options)]
    return start(node_classification.node_classification, argv, node_classification.PRESETS)


def lookup(*options: object) -> dict:
    sizes = ["--sizes", "[4]", "--models", "[gatv2]", "--batch", "7", "--steps", "3"]
    return start(dictionary_lookup.dictionary_lookup, [*QUIET, *sizes, *map(str, options)])


@pytest.mark.parametrize(("schedule", "steps"), [("constant", 2), ("cosine", 2), ("cosine", 3)])
def test_resumed_is_straight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, schedule: str, steps: int
) -> None:
    options = ["--training.epochs", 4, "--training.schedule", schedule]  # dropout draws numbers in every step
    straight = nodes("--out", tmp_path / "straight", *options)
    made = cut_power(monkeypatch, NodeTraining, steps)
    with pytest.raises(PowerCut):
        nodes("--out", tmp_path / "cut", *options)
    assert "--resume true goes on" in capsys.readouterr().out
    assert len(rows(tmp_path / "cut/seed-0")) == steps
    made.clear()
    resumed = nodes("--out", tmp_path / "cut", "--resume", "true", *options)
    assert len(made) == 4 - steps  # it did not begin anew
    same_files(tmp_path / "straight/seed-0", tmp_path / "cut/seed-0")
    assert len(rows(tmp_path / "cut/seed-0")) == 4
    untimed = [{**run, "seconds": 0} for found in (straight, resumed) for run in found["runs"]]
    assert untimed[0] == untimed[1]


@pytest.mark.parametrize("steps", [6, 7])  # three batches an epoch: between epochs, and in the middle of one
def test_resumed_is_straight_with_shuffled_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    lookup("--out", tmp_path / "straight", "--training.epochs", 4)
    made = cut_power(monkeypatch, LookupTraining, steps)
    with pytest.raises(PowerCut):
        lookup("--out", tmp_path / "cut", "--training.epochs", 4)
    made.clear()
    lookup("--out", tmp_path / "cut", "--training.epochs", 4, "--resume", "true")
    assert len(made) == 6  # of two epochs
    same_files(tmp_path / "straight/gatv2-4/seed-0", tmp_path / "cut/gatv2-4/seed-0")


@pytest.mark.parametrize("select", ["test", "training"])
def test_a_lookup_is_scored_on_both_parts_and_chosen_by_one(tmp_path: Path, select: str) -> None:
    found = lookup("--out", tmp_path, "--training.epochs", 3, "--select", select)["gatv2-4"]
    data, net = dictionary_lookup.dictionaries(4), LookupNet(4, "gatv2", "unified_attn").eval()
    weights = torch.load(tmp_path / "gatv2-4/seed-0/best.pt")
    net.load_state_dict({name.removeprefix("net."): weight for name, weight in weights.items()})
    shares = {part: share_right(net, data, getattr(data.split, part), "unified_attn") for part in ("train", "test")}
    assert shares == {part: pytest.approx(found[part]["mean"]) for part in shares}
    assert found["val"] == found["test" if select == "test" else "train"]


def test_a_resumed_run_stops_where_the_straight_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--training.patience", 3, "--training.lr", 1e-30, "--training.monitor", "loss"]  # never better again
    straight = nodes("--out", tmp_path / "straight", *options)
    cut_power(monkeypatch, NodeTraining, 2)
    with pytest.raises(PowerCut):
        nodes("--out", tmp_path / "cut", *options)
    resumed = nodes("--out", tmp_path / "cut", "--resume", "true", *options)
    for found in (straight, resumed):
        assert found["runs"][0]["epochs"] == 4
        assert found["runs"][0]["best_epoch"] == 0


def test_finished_seeds_are_kept_and_others_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--out", tmp_path, "--training.epochs", 2]
    first = nodes(*options, "--seeds", 1)
    made = cut_power(monkeypatch, NodeTraining, 99)
    both = nodes(*options, "--seeds", 2, "--resume", "true")
    assert len(made) == 2
    assert both["runs"][0] == first["runs"][0]
    assert [run["seed"] for run in both["runs"]] == [0, 1]


def test_nothing_more_to_run_changes_nothing(tmp_path: Path) -> None:
    """Whoever keeps results.json alone, without the logs, still gets it back, with the commit that made it."""
    options = ["--out", tmp_path, "--training.epochs", 2, "--seeds", 2]
    nodes(*options)
    results = json.loads((tmp_path / "results.json").read_text())
    results["environment"]["commit"] = "an older one"
    (tmp_path / "results.json").write_text(json.dumps(results))
    for log in tmp_path.rglob("metrics.csv"):
        log.unlink()
    assert nodes(*options, "--resume", "true") == results
    assert json.loads((tmp_path / "results.json").read_text()) == results


@pytest.mark.parametrize(("monitor", "best"), [("loss", min), ("score", max)])
def test_the_best_epoch_is_tested(tmp_path: Path, monitor: str, best: type(min)) -> None:
    options = ["--training.epochs", 12, "--training.lr", 0.3, "--training.monitor", monitor]
    (run,) = nodes("--out", tmp_path, *options)["runs"]
    logged = rows(tmp_path / "seed-0")
    values = [float(row[f"val/{monitor}"]) for row in logged]
    assert run["best_epoch"] == values.index(best(values)) < 11  # a large rate: the last epoch is not the best
    assert run["val"] == pytest.approx(float(logged[run["best_epoch"]]["val/score"]))


def test_both_monitors_choose_and_stop_as_the_gat_papers_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--training.epochs", 60, "--training.lr", 0.3, "--training.monitor", "both", "--training.patience", 4]
    (run,) = nodes("--out", tmp_path / "straight", *options)["runs"]
    lowest, highest, waited, best = math.inf, -math.inf, 0, -1
    logged = rows(tmp_path / "straight/seed-0")
    for epoch, row in enumerate(logged):
        loss, score = float(row["val/loss"]), float(row["val/score"])
        if loss <= lowest and score >= highest and (loss, score) != (lowest, highest):
            best = epoch
        waited = 0 if loss <= lowest or score >= highest else waited + 1
        lowest, highest = min(loss, lowest), max(score, highest)
        assert waited < 4 or epoch == len(logged) - 1
    assert (run["best_epoch"], run["epochs"], waited) == (best, len(logged), 4)
    cut_power(monkeypatch, NodeTraining, run["epochs"] - 2)
    with pytest.raises(PowerCut):
        nodes("--out", tmp_path / "cut", *options)
    (resumed,) = nodes("--out", tmp_path / "cut", "--resume", "true", *options)["runs"]
    assert (resumed["best_epoch"], resumed["epochs"]) == (run["best_epoch"], run["epochs"])


def test_a_run_stops_at_the_threshold(tmp_path: Path) -> None:
    options = [
        "--training.epochs",
        50,
        "--training.monitor",
        "score",
        "--training.threshold",
        0.5,
        "--training.lr",
        0.1,
    ]
    (run,) = nodes("--out", tmp_path, *options)["runs"]
    assert run["epochs"] < 50
    assert run["val"] > 0.5


def test_cosine_schedule() -> None:
    groups = [{"lr": -1.0}]
    rates = []
    for epoch in range(4):
        trainer = SimpleNamespace(current_epoch=epoch, optimizers=[SimpleNamespace(param_groups=groups)])
        Schedule(TrainingConfig(epochs=4, lr=0.2, schedule="cosine")).on_train_epoch_start(trainer, None)
        rates.append(groups[0]["lr"])
    assert rates == pytest.approx([0.2, 0.1 + 0.1 * math.sqrt(0.5), 0.1, 0.1 - 0.1 * math.sqrt(0.5)])


def test_what_a_job_leaves(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    returned = nodes("--out", tmp_path, "--training.epochs", 2, "--seeds", 3, "--first_seed", 5)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored == returned
    assert [run["seed"] for run in stored["runs"]] == [5, 6, 7]
    scores = [run["test"] for run in stored["runs"]]
    assert stored["test"] == {"mean": statistics.mean(scores), "std": statistics.stdev(scores)}
    assert stored["settings"]["training"]["epochs"] == 2
    assert stored["settings"]["net"]["heads"] == 8
    versions = stored["environment"]["versions"]
    assert all(name in versions for name in ("Python", "torch ", "unified-attn", "lightning", "torch-geometric"))
    assert set(stored["environment"]) == {"machine", "versions", "commit", "command"}
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    for seed in (5, 6, 7):
        folder = tmp_path / f"seed-{seed}"
        assert set(rows(folder)[1]) == {"epoch", "train/loss", "val/loss", "val/score"}
        assert list(folder.glob("tensorboard/events.out.tfevents.*"))
        assert not (folder / "last.ckpt").exists()
    shown = Metric("ROC AUC").show(stored["test"]["mean"], stored["test"]["std"])
    assert f"{shown}, seeds: 3" in capsys.readouterr().out


def test_a_number_as_it_is_printed() -> None:
    assert Metric("accuracy").show(0.8314, 0.0052) == "83.14 ± 0.52 %"
    assert Metric("error", higher_is_better=False, unit="m").show(1.25) == "1.2500 m"


def test_seeds_decide(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        nodes("--out", tmp_path / name, "--training.epochs", 2, "--first_seed", seed)
    same_files(tmp_path / "one/seed-3", tmp_path / "same/seed-3")
    assert rows(tmp_path / "one/seed-3") != rows(tmp_path / "other/seed-4")


def test_the_baseline_runs_the_same_script(tmp_path: Path) -> None:
    for model in ("gat", "gatv2", "transformer"):
        found = nodes(
            "--out", tmp_path / model, "--layers", "torch_geometric", "--model", model, "--training.epochs", 2
        )
        assert 0 <= found["test"]["mean"] <= 1
    found = nodes("--out", tmp_path / "sep", "--dataset", "texas", "--model", "gat-sep", "--training.epochs", 2)
    assert found["settings"]["net"]["residual"]


def test_yaml_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    asked = ["--model", "gatv2", "--training.lr", "0.5", "--training.epochs", "1", "--out", str(tmp_path / "a")]
    with pytest.raises(SystemExit) as left:
        nodes(*asked, "--print_config")
    assert left.value.code == 0
    written = capsys.readouterr().out
    assert yaml.safe_load(written)["training"]["lr"] == 0.5
    (tmp_path / "job.yaml").write_text(written)
    by_options = nodes(*asked)
    by_file = nodes("--config", tmp_path / "job.yaml", "--out", tmp_path / "b")
    assert by_file["settings"] == by_options["settings"]
    same_files(tmp_path / "a/seed-0", tmp_path / "b/seed-0")


def test_defaults_follow_the_data_set_however_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "part.yaml").write_text("dataset: minesweeper\ntraining:\n  epochs: 7\n")
    for options in (["--dataset", "minesweeper", "--training.epochs", "7"], ["--config", tmp_path / "part.yaml"]):
        with pytest.raises(SystemExit):
            nodes(*options, "--print_config")
        given = yaml.safe_load(capsys.readouterr().out)
        assert given["training"]["epochs"] == 7
        assert (given["training"]["monitor"], given["training"]["lr"]) == ("score", 1e-3)
        assert (given["net"]["residual"], given["net"]["depth"]) == (True, 5)


def test_help_says_what_options_are_for(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        nodes("--dataset", "minesweeper", "--help")
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "python -m experiments.node_classification --dataset cora --model gatv2 --seeds 10\n" in shown
    assert "default: adamw" in shown
    for option in ("--seeds", "--out", "--resume", "--config", "--print_config", "--training.patience", "--net.heads"):
        assert f"\n  {option} " in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dataset", "corra"], "cora"),
        (["--epochs", "3"], "--epochs"),
        (["--training.epochs", "0"], "epochs is 0"),
        (["--training.lr", "-1"], "lr is -1"),
        (["--training.patience", "-1"], "patience is -1"),
        (["--training.monitor", "val"], "score"),
        (["--training.threshold", "0.1", "--training.monitor", "both"], "threshold is 0.1, but monitor is 'both'"),
        (["--seeds", "0"], "seeds is 0"),
        (["--net.dropout", "1"], "dropout is 1"),
        (["--net.heads", "0"], "heads is 0"),
        (["--layers", "dgl"], "torch_geometric"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        nodes("--out", tmp_path / "out", *options)
    assert left.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def refused(capsys: pytest.CaptureFixture, run: Callable[..., object], *options: object) -> str:
    """What a job says that it will not do."""
    with pytest.raises(SystemExit) as left:
        run(*options)
    assert left.value.code == 2
    return capsys.readouterr().err


def test_what_cannot_be_is_named_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = "--out", tmp_path / "out"
    assert "model is 'gat-sep'" in refused(capsys, nodes, *out, "--model", "gat-sep")
    assert "batch is [0]" in refused(capsys, lookup, *out, "--batch", 0)
    assert "dropout is 1.0" in refused(capsys, lookup, *out, "--dropout", 1)
    assert "sizes is [3, 1]; give numbers of at least 2" in refused(capsys, lookup, *out, "--sizes", "[3, 1]")
    assert "sizes is [3, 0]" in refused(capsys, lookup, *out, "--sizes", "[3, 0]")
    assert not (tmp_path / "out").exists()


def test_a_run_that_diverges_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = ["--out", tmp_path, "--training.epochs", 9, "--training.lr", 1e30]
    assert "the training loss is nan; lower training.lr" in refused(capsys, nodes, *options)


def test_missing_data_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def load(dataset: str) -> None:
        raise FileNotFoundError("data/x is missing; fetch it")

    monkeypatch.setattr(node_classification, "load", load)
    assert refused(capsys, nodes, "--out", tmp_path).endswith("error: data/x is missing; fetch it\n")


def test_a_folder_holds_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    cut_power(monkeypatch, NodeTraining, 1)
    with pytest.raises(PowerCut):  # before there is any result
        nodes("--out", tmp_path, "--training.epochs", 2)
    assert "--resume true" in refused(capsys, nodes, "--out", tmp_path, "--training.epochs", 2)
    other = ["--out", tmp_path, "--training.epochs", 3, "--resume", "true"]
    assert "training.epochs 2 -> 3" in refused(capsys, nodes, *other)
    assert nodes("--out", tmp_path, "--training.epochs", 2, "--resume", "true")["runs"]


def test_settings_are_compared_as_they_are_stored(tmp_path: Path) -> None:
    run, settings = RunConfig(tmp_path), {"sizes": (1, 2), "out": Path("x")}
    Job(run, "", settings, Metric("accuracy"))
    assert Job(replace(run, resume=True), "", settings, Metric("accuracy")).runs == []


def test_the_command_is_the_one_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["/somewhere/experiments/node_classification.py", "--out", "a folder"]
    monkeypatch.setattr(sys, "argv", typed)
    assert command() == "python -m experiments.node_classification --out 'a folder'"


def test_weights_of_the_best_epoch_are_written(tmp_path: Path) -> None:
    nodes("--out", tmp_path, "--training.epochs", 2)
    weights = torch.load(tmp_path / "seed-0/best.pt")
    assert all(name.startswith("net.") for name in weights)
