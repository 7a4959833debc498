"""A job: the same run over several seeds, and results.json with mean and deviation."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning

from experiments.environment import environment
from experiments.training.config import RunConfig
from experiments.training.figures import draw_curves
from experiments.training.run import Outcome

PACKAGES = ("unified-attn", "lightning", "torch-geometric", "numba")


def repeat(
    one: Callable[[int, Path], Outcome], config: RunConfig, settings: dict[str, Any], metric: str
) -> dict[str, Any]:
    """Runs each seed in a folder of its own and writes what came out, after every seed.

    Args:
        one: Takes a seed, which is set, and the folder of its run.
        config: Where, and how often.
        settings: All settings of the job, for the results file. A resumed job must have the same.
        metric: Name of the score.

    Returns:
        What results.json holds.

    Raises:
        ValueError: If the folder holds another job's results, or this one's without `resume`.
    """
    out = config.out
    file = out / "results.json"
    settings = json.loads(json.dumps(settings, default=str))
    done: list[dict[str, Any]] = []
    if file.exists():
        before = json.loads(file.read_text())
        if not config.resume:
            raise ValueError(f"out is {out}, which holds results already; give another folder, or --run.resume true")
        if before["settings"] != settings:
            raise ValueError(f"out is {out}, whose results are of other settings; give another folder")
        done = before["runs"]
    finished = {record["seed"] for record in done}
    results: dict[str, Any] = {}
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        folder = out / f"seed-{seed}"
        if seed not in finished:
            folder.mkdir(parents=True, exist_ok=True)
            lightning.seed_everything(seed, verbose=False)
            done.append(one(seed, folder).record())
            print(f"seed {seed}: {metric} {done[-1]['test']:.4f} after {done[-1]['epochs']} epochs", flush=True)
        results = summary(done, settings, metric)
        file.write_text(json.dumps(results, indent=1) + "\n")
    draw_curves([out / f"seed-{record['seed']}" / "metrics.csv" for record in done], out / "curves.png", metric)
    print(f"{metric}: {100 * results['mean']:.2f} ± {100 * results['std']:.2f} %, {len(done)} seeds; {file}")
    return results


def summary(runs: list[dict[str, Any]], settings: dict[str, Any], metric: str) -> dict[str, Any]:
    scores = [record["test"] for record in runs]
    return {
        "metric": metric,
        "mean": statistics.mean(scores),
        "std": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "runs": runs,
        "settings": settings,
        "environment": environment(command(), PACKAGES),
    }


def command() -> str:
    """The command line as it was typed."""
    file = Path(sys.argv[0])
    parts = file.with_suffix("").parts
    parts = parts[parts.index("experiments") :] if "experiments" in parts else (file.stem,)
    return shlex.join(["python", "-m", ".".join(part for part in parts if part != "__main__"), *sys.argv[1:]])


def plain(*configs: Any) -> dict[str, Any]:
    """Settings of several dataclasses, by class."""
    return {type(config).__name__: asdict(config) for config in configs}
