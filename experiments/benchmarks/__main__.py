"""Verifies every case against float64, then times ours and the peer in turn."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from jsonargparse import auto_cli

from experiments.benchmarks.measure import measure
from experiments.benchmarks.registry import cases
from experiments.benchmarks.report import markdown, write
from experiments.environment import environment

BUSY = 0.7
"""Load, in running processes, from which on it is said."""


def benchmarks(quick: bool = False, out: Path = Path("outputs/benchmarks"), seconds: float = 0.6) -> None:
    """Benchmarks of operator, layers and sequences against torch-geometric, SDPA and plain torch; ten minutes.

    Args:
        quick: Small sizes, and half a second a row: within a minute.
        out: Folder for benchmarks.json and benchmarks.md, written after every case.
        seconds: Time for each row.
    """
    logging.getLogger("torch").setLevel(logging.ERROR)
    where = environment(
        f"python -m experiments.benchmarks{' --quick true' if quick else ''}", ("numba", "numpy", "torch-geometric")
    )
    busy = os.getloadavg()[0]  # of the last minute: what else runs slows a peer with barriers more than one without
    where["load at the start"] = f"{busy:.1f}"
    if busy > BUSY:
        print(f"the machine is busy (load {busy:.1f}): ratios may be far off; the file says so")
    rows = []
    for case in cases(quick):
        print(f"{case.name}, against {case.peer}", flush=True)
        try:
            rows += measure(case, 0.5 if quick else seconds)
        except RuntimeError as error:
            if "torch.compile" not in case.peer:
                raise
            # Whether torch's compiler can build a peer depends on the machine's processor and C++ compiler.
            reason = f"{case.name}, against {case.peer}: {type(error).__name__}"
            where["left out"] = "; ".join(filter(None, [where.get("left out"), reason]))
        write(rows, where, out)
    print(markdown(rows, where))


if __name__ == "__main__":
    auto_cli(benchmarks, as_positional=False)
