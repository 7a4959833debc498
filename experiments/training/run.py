"""One run through Lightning: logs, checkpoints, early stopping, and the test of the best epoch."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger

from experiments.training.callbacks import Bar, Best, Finite, History, Patience, RandomState, Saved, Schedule
from experiments.training.config import Metric, TrainingConfig


@dataclass
class Outcome:
    """What one run came to.

    Args:
        seed: Of the run.
        test: Score on the test part, of the best epoch.
        val: Score on the validation part, likewise.
        best_epoch: Its number, from 0.
        epochs: Epochs trained.
        seconds: Of training, after the last resume.
        train: Score on the training part, likewise, from a job that asks whether it can be fitted.
    """

    seed: int
    test: float
    val: float
    best_epoch: int
    epochs: int
    seconds: float
    train: float | None = None


def optimizer(module: torch.nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(module.parameters(), config.lr, weight_decay=config.weight_decay)


def fit(
    module: lightning.LightningModule,
    train: Iterable[Any],
    val: Iterable[Any],
    test: Iterable[Any],
    config: TrainingConfig,
    metric: Metric,
    folder: Path,
    seed: int,
    *,
    resume: bool,
    progress: bool,
) -> Outcome:
    """Trains, then tests the weights of the best epoch, which are left in `module` and in best.pt.

    The module logs `train/loss` in training, `val/loss` and `val/score` in validation, `test/score` in the test.

    Args:
        module: Made after `seed` was set.
        train: Batches of an epoch.
        val: Batches of the validation part.
        test: Batches of the test part.
        config: How long.
        metric: What the score is.
        folder: For checkpoint and logs.
        seed: Goes into the outcome.
        resume: Go on from the folder's checkpoint, where there is one.
        progress: Show a bar.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it reports hardware at every training
    # Lightning calls a pytree function that torch has renamed; a batch may be a whole graph, without workers.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    watched = {"loss": "min", "score": "max" if metric.higher_is_better else "min"}
    modes = {f"val/{name}": mode for name, mode in watched.items() if config.monitor in (name, "both")}
    best, checkpoint = Best(modes), folder / "last.ckpt"
    callbacks: list[lightning.Callback] = [
        RandomState(),
        Schedule(config),
        best,
        History(folder / "metrics.csv"),
        Finite(),
    ]
    patience = config.patience or config.epochs
    if len(modes) > 1:
        callbacks.append(Patience(best, patience))
    elif config.patience or config.threshold is not None:
        ((monitor, mode),) = modes.items()
        callbacks.append(EarlyStopping(monitor, mode=mode, patience=patience, stopping_threshold=config.threshold))
    if progress:
        callbacks.append(Bar(f"seed {seed}", best))
    trainer = lightning.Trainer(
        max_epochs=config.epochs,
        accelerator="cpu",
        callbacks=[*callbacks, Saved(checkpoint, config.save_every)],
        logger=TensorBoardLogger(folder, "", "tensorboard"),
        log_every_n_steps=1,
        gradient_clip_val=config.clip or None,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    begin = time.perf_counter()
    trainer.fit(module, train, val, ckpt_path=checkpoint if resume and checkpoint.exists() else None)
    seconds = time.perf_counter() - begin
    epochs = trainer.current_epoch
    module.load_state_dict(best.weights)
    (tested,) = trainer.test(module, test, verbose=False)
    (validated,) = trainer.validate(module, val, verbose=False)
    torch.save(best.weights, folder / "best.pt")
    checkpoint.unlink(missing_ok=True)
    return Outcome(seed, tested["test/score"], validated["val/score"], best.epoch, epochs, round(seconds, 1))
