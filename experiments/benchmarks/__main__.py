"""Verifies every case against float64, then times ours and the peer in turn."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import auto_cli
from rich.progress import track

from experiments.benchmarks.cases import ARXIV, SMALL, operator_cases
from experiments.benchmarks.measure import measure
from experiments.benchmarks.report import markdown, write
from experiments.environment import environment


def benchmarks(quick: bool = False, out: Path = Path("outputs/benchmarks"), seconds: float = 20.0) -> None:
    """Benchmarks of the fused operator against the same formulas in plain torch.

    Args:
        quick: Small graphs, and two seconds a row: within a minute.
        out: Folder for benchmarks.json and benchmarks.md.
        seconds: Time for each row.
    """
    where = environment(f"python -m experiments.benchmarks{' --quick true' if quick else ''}", ("numba", "numpy"))
    cases = operator_cases(SMALL if quick else ARXIV)
    rows = [row for case in track(cases, "measuring") for row in measure(case, 2.0 if quick else seconds)]
    write(rows, where, out)
    print(markdown(rows, where))


if __name__ == "__main__":
    auto_cli(benchmarks, as_positional=False)
