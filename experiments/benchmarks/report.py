"""Results as JSON and as a Markdown table that names machine, versions, commit and command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path

import numba
import numpy
import torch

from experiments.benchmarks.measure import Row


def environment(command: str) -> dict[str, str]:
    """Where the numbers come from."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    model = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "machine": f"{model[0] if model else platform.processor()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, numba {numba.__version__}, "
        f"numpy {numpy.__version__}",
        "commit": described.stdout.strip() or "unknown",
        "command": command,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def markdown(rows: list[Row], where: dict[str, str]) -> str:
    """The table, a row a case and direction."""
    lines = [
        "| case | direction | peer | times as fast | quartiles | ours, ms | peer, ms | error | peer's error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        low, high = row.spread
        cells = [row.case, row.direction, row.peer, f"**{row.ratio:.2f}**", f"{low:.2f} to {high:.2f}"]
        cells += [f"{row.ours_ms:.1f}", f"{row.peer_ms:.1f}", f"{row.error:.0e}", f"{row.peer_error:.0e}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {name}: {value}" for name, value in where.items())]
    lines += ["- float32; medians of runs in turn; errors relative to the largest value, against float64", ""]
    return "\n".join(lines)


def write(rows: list[Row], where: dict[str, str], out: Path) -> None:
    """``benchmarks.json`` and ``benchmarks.md`` in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    table = [{**asdict(row), "ratio": row.ratio} for row in rows]
    (out / "benchmarks.json").write_text(json.dumps({"environment": where, "rows": table}, indent=2) + "\n")
    (out / "benchmarks.md").write_text(markdown(rows, where))
