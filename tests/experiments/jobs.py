"""Small jobs to train, and a way to interrupt them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from graphs.nodes import NodeData
from graphs.splits import Split


class PowerCut(RuntimeError):
    """What a test raises in the middle of a run."""


def cut_power(monkeypatch: pytest.MonkeyPatch, kind: type, after: int) -> list[int]:
    """Lets a module do so many training steps; the next raises, once. Gives the list of all steps that are made."""
    step = kind.training_step
    made: list[int] = []
    left = [after]

    def counted(self: Any, batch: Any, index: int) -> torch.Tensor:
        left[0] -= 1
        if left[0] == -1:
            raise PowerCut
        made.append(index)
        return step(self, batch, index)

    monkeypatch.setattr(kind, "training_step", counted)
    return made


def same_files(one: Path, other: Path) -> None:
    """Raises unless two runs left the same weights and the same logged numbers, bit for bit."""
    ours, theirs = (torch.load(folder / "best.pt") for folder in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert rows(one) == rows(other)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as stream:
        return list(csv.DictReader(stream))


def small_graph() -> NodeData:
    """Two classes that features tell apart, on a ring each."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(20) % 2
    ring = torch.arange(20)
    return NodeData(
        name="ring",
        x=torch.randn(20, 6, generator=generator) + y[:, None],
        y=y,
        edge_index=torch.stack([ring, (ring + 2) % 20]),
        splits=[Split(*ring.split([10, 5, 5]))],
        num_classes=2,
    )
