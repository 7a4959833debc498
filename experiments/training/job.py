"""A job: the same run over several seeds, and results.json with mean and deviation."""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning

from experiments.environment import environment
from experiments.training.config import Metric, RunConfig, SettingError
from experiments.training.figures import draw_curves
from experiments.training.run import Outcome

PACKAGES = ("unified-attn", "lightning", "torch-geometric", "numba")


class Job:
    """A folder with the runs of one setting. Made before any work, so that a wrong folder is said at once.

    Args:
        run: Where, and how often.
        name: Of the folder below outputs/ where `run` names none.
        settings: All settings of the job, for the results file; a resumed job must have the same.
        metric: What a run is judged by.

    Raises:
        SettingError: If the folder holds another job's results, or this one's without `resume`.
    """

    def __init__(self, run: RunConfig, name: str, settings: dict[str, Any], metric: Metric) -> None:
        self.run, self.metric = run, metric
        self.out = run.out or Path("outputs") / name
        self.file = self.out / "results.json"
        self.settings = json.loads(json.dumps(settings, default=str))
        self.runs: list[dict[str, Any]] = []
        self.environment = environment(command(), PACKAGES)
        if self.file.exists():
            before = json.loads(self.file.read_text())
            if not run.resume:
                raise SettingError(f"out is {self.out}, which holds results; give another folder, or --resume true")
            if before["settings"] != self.settings:
                changed = differences(before["settings"], self.settings)
                raise SettingError(f"out is {self.out}, whose results are of other settings: {changed}; give another")
            self.runs, self.environment = before["runs"], before["environment"]  # kept if nothing more is run
        self.out.mkdir(parents=True, exist_ok=True)
        self.write()

    def repeat(self, one: Callable[[int, Path], Outcome]) -> dict[str, Any]:
        """Runs each seed in a folder of its own and writes what came out, after every seed.

        Args:
            one: Takes a seed, which is set, and the folder of its run.

        Returns:
            What results.json holds.
        """
        finished = {record["seed"] for record in self.runs}
        for seed in range(self.run.first_seed, self.run.first_seed + self.run.seeds):
            if seed in finished:
                continue
            self.environment = environment(command(), PACKAGES)
            folder = self.out / f"seed-{seed}"
            folder.mkdir(exist_ok=True)
            lightning.seed_everything(seed, verbose=False)
            try:
                outcome = one(seed, folder)
            except SettingError:
                raise
            except BaseException:  # a user's interrupt, too
                print(f"seed {seed} did not end; the same command with --resume true goes on from its last checkpoint")
                raise
            self.runs.append(asdict(outcome))
            self.write()
            shown = self.metric.show(outcome.test)
            print(f"seed {seed}: {self.metric.name} {shown}, best of {outcome.epochs} epochs: {outcome.best_epoch}")
        logs = [self.out / f"seed-{record['seed']}" / "metrics.csv" for record in self.runs]
        if all(log.exists() for log in logs):  # whoever keeps results alone has none of earlier runs
            draw_curves(logs, self.out / "curves.png", self.metric.name)
        results = self.results()
        both = [value for value in results["test"].values() if value is not None]
        print(f"{self.metric.name}: {self.metric.show(*both)}, seeds: {len(self.runs)}; {self.file}")
        return results

    def results(self) -> dict[str, Any]:
        scores = {part: [record.get(part) for record in self.runs] for part in ("test", "val", "train")}
        parts = {part: spread(own) for part, own in scores.items() if part != "train" or None not in own}
        return {
            "metric": self.metric.name,
            **parts,
            "runs": self.runs,
            "settings": self.settings,
            "environment": self.environment,
        }

    def write(self) -> None:
        """Whole or not at all, whenever it is interrupted."""
        draft = self.file.with_suffix(".tmp")
        draft.write_text(json.dumps(self.results(), indent=1) + "\n")
        os.replace(draft, self.file)


def spread(scores: list[float]) -> dict[str, float | None]:
    """Mean and sample deviation; of one run there is no deviation."""
    return {
        "mean": statistics.mean(scores) if scores else None,
        "std": statistics.stdev(scores) if len(scores) > 1 else None,
    }


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """`training.lr 0.005 -> 0.01`, for all that differs."""
    flat_old, flat_new = flat(old), flat(new)
    names = sorted(name for name in flat_old | flat_new if flat_old.get(name) != flat_new.get(name))
    return ", ".join(f"{name} {flat_old.get(name)} -> {flat_new.get(name)}" for name in names)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def command() -> str:
    """The command line as it was typed."""
    file = Path(sys.argv[0])
    parts = file.with_suffix("").parts
    parts = parts[parts.index("experiments") :] if "experiments" in parts else (file.stem,)
    return shlex.join(["python", "-m", ".".join(part for part in parts if part != "__main__"), *sys.argv[1:]])
