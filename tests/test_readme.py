"""The README's code runs as written, in order."""

import re
from pathlib import Path

import pytest
import torch

from unified_attn.testing import check_backend

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)


def run_blocks(*, without=()):
    """The names that the code defines, run in order."""
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "__main__"}  # as a script: what is copied looks for its module
    for block in BLOCKS:
        lines = (line for line in block.splitlines() if not line.startswith(tuple(without)))
        exec(compile("\n".join(lines), str(README), "exec"), names)
    return names


def test_code_runs_in_order(capsys):
    assert len(BLOCKS) >= 3
    names = run_blocks(without=["check_backend("])
    assert isinstance(names["out"], torch.Tensor)
    assert torch.isfinite(names["out"]).all()
    assert "sdpa runs" in capsys.readouterr().out


@pytest.mark.slow
def test_its_back_end_keeps_the_laws():
    assert any(line.startswith("check_backend(Plain())") for block in BLOCKS for line in block.splitlines())
    check_backend(run_blocks(without=["check_"])["Plain"]())


def test_first_code_comes_early():
    lines = README.read_text().splitlines()
    assert lines.index("```python") < 20


def test_names_of_the_table_exist():
    """Every mask, bias and score that the table of models names is importable."""
    import unified_attn

    rows = re.findall(r"^\| (?!model)[^|]+\|([^|]+)\|([^|]*)\|([^|]+)\|$", README.read_text(), flags=re.M)
    named = {name for row in rows for cell in row for name in re.findall(r"`([A-Z]\w+)[(.]", cell)}
    assert {"Causal", "RoPE", "GATv2"} <= named
    assert not [name for name in named if not hasattr(unified_attn, name)]
