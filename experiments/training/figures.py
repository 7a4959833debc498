"""Curves of a job: losses and score by epoch, a line a seed."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

STYLE = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
"""What all figures share."""


def read_columns(file: Path) -> dict[str, list[float]]:
    """The columns of a CSV file of numbers."""
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw_curves(files: list[Path], out: Path, metric: str) -> None:
    """Training and validation loss, and the validation score."""
    with mpl.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
        for n, file in enumerate(files):
            columns = read_columns(file)
            for name, color in (("train/loss", "tab:blue"), ("val/loss", "tab:orange")):
                left.plot(
                    columns["epoch"], columns[name], color=color, linewidth=0.8, alpha=0.7, label=None if n else name
                )
            right.plot(columns["epoch"], columns["val/score"], color="tab:orange", linewidth=0.8, alpha=0.7)
        left.set(xlabel="epoch", ylabel="loss")
        left.legend(frameon=False)
        right.set(xlabel="epoch", ylabel=f"{metric}, validation")
        figure.savefig(out, dpi=150)
        plt.close(figure)
