"""The README's results are those of the results files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import results_table
from experiments.results_table import Row, lookups, table
from tests.readme import made_part


def test_the_readme_says_what_the_results_files_say() -> None:
    found = made_part("results")
    assert found == table(), "README.md differs: put in what `python -m experiments.results_table` prints"


def write(folder: Path, content: object) -> None:
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(content))


def test_a_row_holds_ours_theirs_and_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_table, "RESULTS", tmp_path)
    write(tmp_path / "job/cora", {"test": {"mean": 0.8351, "std": 0.0044}, "runs": [{}] * 10})
    write(tmp_path / "job/cora-torch_geometric", {"test": {"mean": 0.83, "std": None}, "runs": [{}]})
    row = Row("Cora", "GAT", "job/cora", "83.0 (paper)")
    assert row.cells() == ["Cora, accuracy", "GAT", "83.51 ± 0.44 (10)", "83.00 (1)", "83.0 (paper)"]
    missing = Row("Cora", "GAT", "job/none", metric=results_table.ERROR)
    assert missing.cells() == ["Cora, mean absolute error, log mol/l", "GAT", "", "", ""]


def test_lookups_show_both_parts_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_table, "RESULTS", tmp_path)
    content = {
        f"{model}-{size}": {
            "settings": {"size": size, "model": model},
            "train": {"mean": 0.5},
            "test": {"mean": 0.25},
            "runs": [{"test": 0.2}, {"test": 0.3}],
        }
        for size in (6, 4)
        for model in ("gatv2", "dot")
    }
    write(tmp_path / "dictionary_lookup", content)
    head, *rows = lookups()
    assert head[1:] == ["k = 4", "k = 6"]
    assert rows == [[model, "50 / 25 (30)", "50 / 25 (30)"] for model in ("gatv2", "dot")]
