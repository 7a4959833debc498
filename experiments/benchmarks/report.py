"""Results as JSON and as a Markdown table that names machine, versions, commit and command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from experiments.benchmarks.measure import Row


def markdown(rows: list[Row], where: dict[str, str]) -> str:
    """The table, a row a case and direction."""
    lines = [
        "| case | direction | peer | times as fast | quartiles | ours, ms | peer, ms | passes | error | peer's error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        low, high = row.spread
        cells = [row.case, row.direction, row.peer, f"**{row.ratio:.2f}**", f"{low:.2f} to {high:.2f}"]
        passes = "" if row.passes is None else f"{row.passes:.2f}"
        cells += [f"{row.ours_ms:.3g}", f"{row.peer_ms:.3g}", passes, f"{row.error:.0e}", f"{row.peer_error:.0e}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {name}: {value}" for name, value in where.items())]
    lines += [
        "- float32; medians of runs in turn; errors against float64, root mean squares relative to those of the values"
    ]
    lines += ["- passes: ours in times of MKL's sparse product with the adjacency, H x C wide, timed along", ""]
    return "\n".join(lines)


def write(rows: list[Row], where: dict[str, str], out: Path) -> None:
    """``benchmarks.json`` and ``benchmarks.md`` in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    table = [{**asdict(row), "ratio": row.ratio} for row in rows]
    (out / "benchmarks.json").write_text(json.dumps({"environment": where, "rows": table}, indent=2) + "\n")
    (out / "benchmarks.md").write_text(markdown(rows, where))
