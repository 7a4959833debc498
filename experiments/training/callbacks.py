"""Callbacks of a run: what is kept of it, when it is saved, and what its user sees.

Those that keep something put it into the checkpoint, so that a resumed run ends as the uninterrupted one would.
"""

from __future__ import annotations

import csv
import math
import os
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Checkpoint
from rich import get_console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.training.config import SettingError, TrainingConfig


class Best(lightning.Callback):
    """The weights of the best epoch, in memory: writing them at every new best takes longer than an epoch of Cora.

    Of several monitored values none may be worse than ever before, and one must be better.

    Args:
        modes: `min` or `max` for each monitored value.
    """

    def __init__(self, modes: dict[str, str]) -> None:
        self.signs = {name: 1.0 if mode == "min" else -1.0 for name, mode in modes.items()}
        self.lowest = dict.fromkeys(modes, math.inf)
        self.epoch = -1
        self.weights: dict[str, torch.Tensor] = {}

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        values = {name: sign * float(trainer.callback_metrics[name]) for name, sign in self.signs.items()}
        before, self.lowest = self.lowest, {name: min(value, self.lowest[name]) for name, value in values.items()}
        if values == self.lowest != before:
            self.epoch = trainer.current_epoch
            self.weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        return {"lowest": self.lowest, "epoch": self.epoch, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lowest, self.epoch, self.weights = state["lowest"], state["epoch"], state["weights"]


class Patience(lightning.Callback):
    """Stops a run after so many epochs in which no monitored value was as good as the best of it.

    Args:
        best: Knows the best of each.
        epochs: How many.
    """

    def __init__(self, best: Best, epochs: int) -> None:
        self.best, self.epochs = best, epochs
        self.waited = 0

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        best = self.best
        as_good = [
            sign * float(trainer.callback_metrics[name]) <= best.lowest[name] for name, sign in best.signs.items()
        ]
        self.waited = 0 if any(as_good) else self.waited + 1
        trainer.should_stop = trainer.should_stop or self.waited >= self.epochs

    def state_dict(self) -> dict[str, Any]:
        return {"waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waited = state["waited"]


class Finite(lightning.Callback):
    """Ends a run whose loss is no number any more.

    Raises:
        SettingError: After the epoch in which that happens.
    """

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        loss = float(trainer.callback_metrics["train/loss"])
        if not math.isfinite(loss):
            raise SettingError(f"in epoch {trainer.current_epoch} the training loss is {loss}; lower training.lr")


class History(lightning.Callback):
    """All that was logged, a row an epoch, in a CSV file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows.append({"epoch": trainer.current_epoch, **logged})

    def on_fit_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.write()

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, _: BaseException) -> None:
        self.write()

    def write(self) -> None:
        if not self.rows:
            return
        with self.file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


class RandomState(lightning.Callback):
    """torch's random state, which Lightning does not keep: dropout and order would be drawn anew after a resume."""

    def __init__(self) -> None:
        self.loaded: torch.Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"cpu": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["cpu"]

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self.loaded is not None:  # here, since starting a fit draws numbers too
            torch.set_rng_state(self.loaded)
            self.loaded = None


class Schedule(lightning.Callback):
    """Sets the learning rate of each epoch from its number alone, so that there is nothing to keep."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self.config.schedule == "cosine":
            rate = self.config.lr * (1 + math.cos(math.pi * trainer.current_epoch / self.config.epochs)) / 2
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = rate


class Saved(Checkpoint):
    """A checkpoint to resume from, at the first end of an epoch once some seconds have passed since the last.

    Never within an epoch: what the interrupted epoch had drawn would be lost.
    """

    def __init__(self, file: Path, seconds: float) -> None:
        self.file, self.seconds = file, seconds
        self.last = time.monotonic()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if time.monotonic() - self.last >= self.seconds:
            draft = self.file.with_suffix(".tmp")
            trainer.save_checkpoint(draft)
            os.replace(draft, self.file)  # whole or not at all, whenever it is interrupted
            self.last = time.monotonic()


class Bar(lightning.Callback):
    """One bar for a whole run: where an epoch is a single step, a bar an epoch would only flicker."""

    def __init__(self, title: str, best: Best) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self.bar = Progress(*columns, TimeRemainingColumn(), transient=True, disable=not get_console().is_terminal)
        self.task = self.bar.add_task(title, total=None, state="")
        self.best = best

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        steps = trainer.max_epochs * trainer.num_training_batches
        self.bar.update(self.task, total=steps, completed=trainer.global_step)
        self.bar.start()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.bar.update(self.task, completed=trainer.global_step)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        seen = trainer.callback_metrics
        now = "  ".join(f"{name} {float(seen[name]):.4g}" for name in ("train/loss", "val/loss", "val/score"))
        self.bar.update(self.task, state=f"epoch {trainer.current_epoch}  {now}  best at {self.best.epoch}")

    def on_fit_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, _: BaseException) -> None:
        self.bar.stop()
