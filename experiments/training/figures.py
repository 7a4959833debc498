"""Curves of a job: loss and score by epoch, a line a seed."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt


def read_column(file: Path, name: str) -> tuple[list[float], list[float]]:
    """Epochs and values of one logged number."""
    with file.open() as lines:
        rows = [(float(row["epoch"]), float(row[name])) for row in csv.DictReader(lines) if row.get(name)]
    return [epoch for epoch, _ in rows], [value for _, value in rows]


def draw_curves(files: list[Path], out: Path, metric: str) -> None:
    """Training and validation loss, and the validation score."""
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
        for n, file in enumerate(files):
            for name, color in (("train/loss", "tab:blue"), ("val/loss", "tab:orange")):
                left.plot(*read_column(file, name), color=color, linewidth=0.8, label=name if n == 0 else None)
            right.plot(*read_column(file, "val/score"), color="tab:orange", linewidth=0.8)
        left.set(xlabel="epoch", ylabel="loss")
        left.legend(frameon=False)
        right.set(xlabel="epoch", ylabel=f"{metric}, validation")
        figure.savefig(out, dpi=150)
        plt.close(figure)
