"""Benchmarks time only what is equal, and keep every row."""

import json
from dataclasses import replace

import pytest
import torch

from experiments.benchmarks import memory, peers, sweep, training
from experiments.benchmarks.case import Side, Size
from experiments.benchmarks.layer_cases import layer_cases
from experiments.benchmarks.measure import measure, verify
from experiments.benchmarks.memory_cases import CASES, MESSAGES
from experiments.benchmarks.operator_cases import operator_cases, uneven_cases
from experiments.benchmarks.report import markdown, write
from experiments.benchmarks.sequence_cases import sequence_cases
from experiments.environment import environment
from tests.graphs.tools import data
from tests.test_memory import linux

TINY = Size(nodes=12, edges=40, heads=2, channels=8)


@pytest.fixture(scope="module")
def cases():
    return list(operator_cases(TINY))


def test_the_peers_formula_is_a_loop_over_edges():
    """The baseline itself, against nodes, heads and edges one by one."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 5, 2, 4, dtype=torch.float64).unbind()
    edges = torch.tensor([[0, 1, 1, 3, 0], [2, 2, 0, 2, 2]])
    found = peers.dot(q, k, v, edge_index=edges)
    right = torch.zeros_like(v)
    for i in range(5):
        sources = edges[0, edges[1] == i]
        for h in range(2 if len(sources) else 0):
            weights = (k[sources, h] @ q[i, h] / 2).softmax(0)
            right[i, h] = weights @ v[sources, h]
    torch.testing.assert_close(found, right)


MADE = {
    "operator": lambda: operator_cases(TINY),
    "uneven": lambda: uneven_cases(20_000),
    "layers": lambda: layer_cases(TINY, 5),
    "bags of words": lambda: layer_cases(TINY, 5, words=True),
    "edge features": lambda: layer_cases(TINY, 5, edge_dim=3),
    "sequences": lambda: sequence_cases(40, 8, heads=2, channels=8),
    "FlexAttention": lambda: sequence_cases(256, 32, heads=2, channels=16, compiled=True),
}


@pytest.mark.parametrize("kind", [*list(MADE)[:1], *(pytest.param(k, marks=pytest.mark.slow) for k in list(MADE)[1:])])
def test_every_case_is_equal_to_float64(kind):
    names = []
    for case in MADE[kind]():
        assert max(verify(case)) < 5e-5, case.name
        names.append((case.name, case.peer))
    assert len(set(names)) == len(names) >= 2


def test_what_is_not_equal_is_not_timed(cases):
    right = cases[0].theirs.function
    wrong = replace(cases[0], ours=Side(lambda q, k, v: right(q, k, v) * 1.01))
    with pytest.raises(ArithmeticError, match="exceed"):
        measure(wrong, 0.0)


def test_results_name_machine_versions_commit_and_command(cases, tmp_path):
    rows = measure(cases[0], 0.0)
    assert [row.direction for row in rows] == ["forward", "forward + backward"]
    assert all(row.runs >= 3 and row.ratio > 0 and row.passes > 0 for row in rows)
    where = environment("the command", ("numba",))
    write(rows, where, tmp_path)
    stored = json.loads((tmp_path / "benchmarks.json").read_text())
    assert len(stored["rows"]) == 2
    assert set(stored["environment"]) == {"machine", "versions", "commit", "command"}
    table = (tmp_path / "benchmarks.md").read_text()
    assert table == markdown(rows, where)
    assert "the command" in table
    assert f"torch {torch.__version__}" in table


@linux
@pytest.mark.slow
def test_memory_is_that_of_a_fresh_process():
    """Ours below one [E, H, C] tensor, torch-geometric's above four; and a peer that may not have that much."""
    name = f"GATv2Conv, {MESSAGES}"
    messages = MESSAGES.edges * MESSAGES.heads * MESSAGES.channels * 4 / memory.MIB
    found = memory.peak(name, 4 * 2**30)
    assert 9 < found.results < found.ours < messages < 4 * messages < found.theirs < 10 * messages
    little = memory.peak(name, 300 * 2**20)
    assert little.theirs is None
    assert little.ours < messages
    table = memory.markdown([found, little], {"commit": "none"}, 300 / 1024)
    assert "more than 300" in table


@pytest.mark.slow
def test_memory_cases_compute_the_same():
    """At the small size: the output and every gradient."""
    for name, case in CASES.items():
        for a, b in zip(case.ours(False)(), case.theirs(False)(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_sweep(tmp_path):
    points = sweep.sweep(tmp_path, lengths=[128], seconds=0.0)
    assert {p.kind for p in points} == set(sweep.KINDS)
    assert {p.backend for p in points} == set(sweep.BACKENDS)
    windows = sorted({p.share for p in points if p.kind == "windows"})
    assert windows[0] == pytest.approx(1 / 128)
    assert windows[-1] == 1.0
    for place in {(p.kind, p.share) for p in points}:
        assert sum(p.default for p in points if (p.kind, p.share) == place) == 1
    assert len(json.loads((tmp_path / "sweep.json").read_text())["points"]) == len(points)
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    assert all(regret >= 1 for *_, regret in sweep.regrets(points))


def test_training(tmp_path):
    data("planetoid/Cora")
    record = training.training(epochs=2, rounds=1, out=tmp_path)
    with_dropout, without = record["rows"]
    assert "features not dropped" in without["case"]
    for row in (with_dropout, without):
        assert all(0.05 < row[f"{name}_accuracy"] < 0.9 for name in ("ours", "peer"))  # dropout draws apart
        assert row["ratio"] > 0
    assert json.loads((tmp_path / "training.json").read_text()) == record
