"""The README's table of results, from the files that the jobs wrote: `python -m experiments.results_table`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.training.config import Metric

RESULTS = Path(__file__).parent / "results"
ACCURACY = Metric("accuracy")


@dataclass(frozen=True)
class Row:
    """A setting that was trained with our layer, and with torch-geometric's if there is such a folder.

    Args:
        data: What was learned.
        model: By what.
        folder: Below results/; the baseline's ends in `-torch_geometric`.
        paper: What was published, and where.
        metric: What is reported.
    """

    data: str
    model: str
    folder: str
    paper: str = ""
    metric: Metric = ACCURACY

    def cells(self) -> list[str]:
        ours, theirs = (read(self.folder + ending) for ending in ("", "-torch_geometric"))
        name = f"{self.data}, {self.metric.name}" + ("" if self.metric.unit == "%" else f", {self.metric.unit}")
        return [name, self.model, *(self.shown(found) for found in (ours, theirs)), self.paper]

    def shown(self, found: dict[str, Any] | None) -> str:
        """`83.51 ± 0.44 (10)`: mean and deviation over so many seeds."""
        if found is None:
            return ""
        both = [value for value in found["test"].values() if value is not None]
        return f"{self.metric.show(*both).removesuffix(self.metric.unit).strip()} ({len(found['runs'])})"


VELICKOVIC = "(Veličković et al. 2018)"
PLATONOV = "(Platonov et al. 2023, 512 wide)"
AUC, F1 = Metric("ROC AUC"), Metric("macro F1")
ERROR = Metric("mean absolute error", higher_is_better=False, unit="log mol/l")
WIDE = {"gat": "GAT", "gat-sep": "GAT-sep", "transformer": "GT"}
MINESWEEPER = {"gat": "92.01 ± 0.68", "gat-sep": "93.91 ± 0.35", "transformer": "91.85 ± 0.76"}
BONDS = "graph Transformer, {} the bias of bond types"

ROWS = [
    Row("Cora", "GAT", "node_classification/cora-gat", f"83.0 ± 0.7 {VELICKOVIC}"),
    Row("CiteSeer", "GAT", "node_classification/citeseer-gat", f"72.5 ± 0.7 {VELICKOVIC}"),
    *(
        Row("minesweeper", name, f"node_classification/minesweeper-{model}", f"{MINESWEEPER[model]} {PLATONOV}", AUC)
        for model, name in WIDE.items()
    ),
    *(
        Row(f"{data}, filtered", name, f"node_classification/{data}-{model}")
        for data in ("chameleon", "squirrel")
        for model, name in WIDE.items()
    ),
    *(
        Row(data.upper(), model.upper(), f"hetero_classification/{data}-{model}", metric=F1)
        for data in ("acm", "imdb")
        for model in ("hgt", "han")
    ),
    *(
        Row("AqSol", BONDS.format(word), f"graph_regression/{word}-bond-types", metric=ERROR)
        for word in ("with", "without")
    ),
]


def read(folder: str) -> dict[str, Any] | None:
    """What a job wrote, if it ran."""
    file = RESULTS / folder / "results.json"
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    return found


def markdown(rows: list[list[str]]) -> list[str]:
    """A table whose first row is its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + " --- |" * len(rows[0]), *body]


def lookups() -> list[list[str]]:
    """Accuracy in training and in the test by k, means over the seeds; in brackets the best test."""
    found = read("dictionary_lookup") or {}
    sizes = sorted({result["settings"]["size"] for result in found.values()})
    models = list(dict.fromkeys(result["settings"]["model"] for result in found.values()))
    rows = [["DictionaryLookup, training / test (best seed), %", *(f"k = {size}" for size in sizes)]]
    for model in models:
        results = [found[f"{model}-{size}"] for size in sizes]
        rows.append([model, *map(both_parts, results)])
    return rows


def both_parts(result: dict[str, Any]) -> str:
    means = [100 * result[part]["mean"] for part in ("train", "test")]
    best = 100 * max(run["test"] for run in result["runs"])
    return f"{means[0]:.0f} / {means[1]:.0f} ({best:.0f})"


def table() -> str:
    """Rows of what was trained."""
    head = ["data", "model", "`unified_attn` (seeds)", "torch-geometric's layer, same seeds", "published"]
    lines = markdown([head, *(row.cells() for row in ROWS if read(row.folder))])
    return "\n".join([*lines, "", *markdown(lookups())] if read("dictionary_lookup") else lines)


if __name__ == "__main__":
    print(table())
