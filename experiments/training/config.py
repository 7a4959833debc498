"""How long a model is trained, and by what it is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class TrainingConfig:
    """One training run.

    Args:
        epochs: Most epochs; the chosen model is the best of all epochs by `monitor`.
        lr: Learning rate of Adam.
        weight_decay: L2 penalty (`adam`: added to the gradient, as the papers of GCN and GAT do; `adamw`: decoupled).
        optimizer: `adam` or `adamw`.
        patience: Epochs without a better `monitor` after which a run stops; 0 = never.
        monitor: `val/loss` (lower is better) or `val/score` (higher is better).
        threshold: Value of `monitor` at which there is nothing left to gain and a run stops; None = none.
        clip: Largest norm of the gradient; 0 = any.
    """

    epochs: int = 1000
    lr: float = 0.005
    weight_decay: float = 5e-4
    optimizer: str = "adam"
    patience: int = 100
    monitor: str = "val/loss"
    threshold: float | None = None
    clip: float = 0.0

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "adamw"):
            raise ValueError(f"optimizer is {self.optimizer!r}; choose 'adam' or 'adamw'")
        if self.monitor not in ("val/loss", "val/score"):
            raise ValueError(f"monitor is {self.monitor!r}; choose 'val/loss' or 'val/score'")
        for name, least in (("epochs", 1), ("patience", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")

    @property
    def mode(self) -> str:
        """Which way `monitor` is better."""
        return "min" if self.monitor == "val/loss" else "max"


@dataclass
class RunConfig:
    """Where a job writes, and how often it is repeated.

    Args:
        out: Folder for results.json, figures and a folder a seed (checkpoints, CSV and TensorBoard logs).
        seeds: Number of runs, with seeds `first_seed`, `first_seed` + 1, ...
        first_seed: Of the first run.
        resume: Continue an interrupted job in `out`: finished seeds are kept, one in the middle goes on from its last
            checkpoint, bit for bit as if it had not stopped.
        progress: Show a progress bar.
    """

    out: Path
    seeds: int = 1
    first_seed: int = 0
    resume: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; a job has at least one run")
