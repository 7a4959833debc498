"""How long a model is trained, by what it is chosen, and where a job writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class SettingError(ValueError):
    """A setting that cannot be; a command line shows it without a traceback."""


@dataclass
class TrainingConfig:
    """One training run.

    Args:
        epochs: Most epochs; what is tested is the best of them by `monitor`.
        lr: Learning rate.
        schedule: `constant`, or `cosine`: down to 0 at the last of `epochs`.
        optimizer: `adam`: weight decay is added to the gradient, as in the papers of GCN and GAT. `adamw`: it is apart.
        weight_decay: L2 penalty.
        patience: Epochs without a better `monitor` after which a run stops; 0 = never.
        monitor: `loss` or `score` of the validation part; or `both`, as the GAT paper's program: an epoch is best if
            neither is worse than ever before (and one better), and patience counts epochs in which neither is as good
            as the best of it.
        threshold: A run stops once `monitor`, which is not `both` then, is better than this; null = never.
        clip: Largest norm of the gradient; 0 = any.
        save_every: Seconds between checkpoints, which are made at ends of epochs; 0 = after each.
    """

    epochs: int = 1000
    lr: float = 0.005
    schedule: Literal["constant", "cosine"] = "constant"
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_decay: float = 5e-4
    patience: int = 100
    monitor: Literal["loss", "score", "both"] = "both"
    threshold: float | None = None
    clip: float = 0.0
    save_every: float = 10.0

    def __post_init__(self) -> None:
        for name in ("epochs", "lr"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("weight_decay", "patience", "clip", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.threshold is not None and self.monitor == "both":
            raise ValueError(f"threshold is {self.threshold}, but monitor is 'both'; choose 'loss' or 'score'")


@dataclass
class RunConfig:
    """Where a job writes, and how often it is repeated.

    Args:
        out: Folder for results.json, curves.png and a folder a seed (checkpoint, CSV and TensorBoard logs); default
            outputs/JOB/SETTING.
        seeds: Number of runs, with seeds `first_seed`, `first_seed` + 1, ...; more than one give mean and deviation.
            With `resume` these are over all seeds in `out`.
        first_seed: Of the first run.
        resume: Go on with the job in `out`: finished seeds are kept, an interrupted one continues from its checkpoint,
            bit for bit as if it had not stopped.
        progress: Show a progress bar.
    """

    out: Path | None = None
    seeds: int = 1
    first_seed: int = 0
    resume: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; a job has at least one run")
        if self.first_seed < 0:
            raise ValueError(f"first_seed is {self.first_seed}; it must be at least 0")


@dataclass(frozen=True)
class Metric:
    """What a model is judged by.

    Args:
        name: In words.
        higher_is_better: Which way.
        unit: `%` for shares of 1, which are printed as percentages.
    """

    name: str
    higher_is_better: bool = True
    unit: str = "%"

    def show(self, *values: float) -> str:
        """`83.10 ± 0.52 %` of a mean and a deviation, `83.10 %` of a value."""
        factor, digits = (100, 2) if self.unit == "%" else (1, 4)
        return f"{' ± '.join(f'{factor * value:.{digits}f}' for value in values)} {self.unit}".strip()
