"""Small callbacks: a bar over epochs, and random numbers that a resumed run draws as the first would have."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class EpochBar(lightning.Callback):
    """One bar for a whole run: where an epoch is a single step, a bar an epoch would only flicker."""

    def __init__(self, title: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self.bar = Progress(*columns, TimeRemainingColumn(), transient=True)
        self.task = self.bar.add_task(title, total=None, state="")

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.bar.update(self.task, total=trainer.max_epochs, completed=trainer.current_epoch)
        self.bar.start()

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        seen = trainer.callback_metrics
        state = f"epoch {trainer.current_epoch}  val loss {seen['val/loss']:.3f}  score {seen['val/score']:.3f}"
        self.bar.update(self.task, completed=trainer.current_epoch, state=state)

    def on_fit_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, _: BaseException) -> None:
        self.bar.stop()


class RandomState(lightning.Callback):
    """Keeps torch's random state in the checkpoint: Lightning does not, and dropout would draw anew after a resume."""

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
