"""The gain of converting is measured only where outputs and gradients are the same."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments import convert_gain
from experiments.convert_gain import Size, gain
from tests.test_memory import linux

SMALL = Size(nodes=60, edges=300, inputs=5, heads=2, channels=3)


@pytest.mark.slow
@linux
def test_small(tmp_path: Path) -> None:
    rows = gain(SMALL, repeats=1, out=tmp_path)
    assert [row["model"] for row in rows] == list(convert_gain.CASES)
    assert all(row["error"] < 1e-5 and row["seconds_after"] > 0 for row in rows)
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"environment", "size", "rows"}


def test_a_layer_that_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            next(model.parameters()).mul_(1.1)
        return model

    monkeypatch.setattr(convert_gain, "convert", wrong)
    with pytest.raises(RuntimeError, match="GATv2Conv: converted and original model differ"):
        convert_gain.measure("GATv2Conv", SMALL, repeats=1)
