"""Where numbers come from: machine, versions, commit and command."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch


def environment(command: str, packages: tuple[str, ...]) -> dict[str, str]:
    """What a results file names.

    Args:
        command: That gives the numbers again.
        packages: Whose versions matter, torch aside.
    """
    here = Path(__file__).parent  # the commit of this code, wherever it is run from
    describe = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(describe, cwd=here, capture_output=True, text=True, check=False)
    model = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    versions = [f"{name} {metadata.version(name)}" for name in packages]
    return {
        "machine": f"{model[0] if model else platform.processor()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads",
        "versions": ", ".join([f"Python {platform.python_version()}", f"torch {torch.__version__}", *versions]),
        "commit": described.stdout.strip() or "unknown",
        "command": command,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
