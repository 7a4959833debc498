"""What all training jobs share: resuming, stopping, results, options."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from experiments import dictionary_lookup, node_classification
from experiments.lookup_training import LookupTraining
from experiments.node_training import NodeTraining
from experiments.training.command import start
from experiments.training.config import Metric, RunConfig, TrainingConfig
from experiments.training.job import Job
from tests.experiments.jobs import PowerCut, cut_power, rows, same_files, small_graph

QUIET = ["--progress", "false", "--training.save_every", "0"]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_classification, "load", lambda dataset: small_graph())


def nodes(*options: object) -> dict:
    argv = [*QUIET, *map(str, options)]
    return start(node_classification.node_classification, argv, node_classification.PRESETS)


def lookup(*options: object) -> dict:
    sizes = ["--sizes", "[4]", "--models", "[gatv2]", "--batch", "7"]
    return start(dictionary_lookup.dictionary_lookup, [*QUIET, *sizes, *map(str, options)])


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("steps", [2, 3])  # at the start of the third epoch, and of the fourth
def test_resumed_is_straight(
    ring: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, schedule: str
) -> None:
    options = ["--training.epochs", 4, "--training.schedule", schedule]  # dropout draws numbers in every step
    straight = nodes("--out", tmp_path / "straight", *options)
    cut_power(monkeypatch, NodeTraining, steps)
    with pytest.raises(PowerCut):
        nodes("--out", tmp_path / "cut", *options)
    resumed = nodes("--out", tmp_path / "cut", "--resume", "true", *options)
    same_files(tmp_path / "straight/seed-0", tmp_path / "cut/seed-0")
    assert len(rows(tmp_path / "cut/seed-0")) == 4
    untimed = [{**run, "seconds": 0} for found in (straight, resumed) for run in found["runs"]]
    assert untimed[0] == untimed[1]


@pytest.mark.parametrize("steps", [4, 5, 6])  # two batches an epoch: between epochs, and in the middle of one
def test_resumed_is_straight_with_shuffled_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    lookup("--out", tmp_path / "straight", "--training.epochs", 4)
    cut_power(monkeypatch, LookupTraining, steps)
    with pytest.raises(PowerCut):
        lookup("--out", tmp_path / "cut", "--training.epochs", 4)
    lookup("--out", tmp_path / "cut", "--training.epochs", 4, "--resume", "true")
    same_files(tmp_path / "straight/gatv2-4/seed-0", tmp_path / "cut/gatv2-4/seed-0")
