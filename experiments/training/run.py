"""One run through Lightning: logs, checkpoints, early stopping, and the test of the best epoch."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from experiments.training.callbacks import EpochBar, RandomState
from experiments.training.config import TrainingConfig


@dataclass
class Outcome:
    """What one run came to.

    Args:
        seed: Of the run.
        test: Score on the test part, of the best epoch.
        val: Score on the validation part, likewise.
        epochs: Epochs trained.
        seconds: Of training, after the last resume.
    """

    seed: int
    test: float
    val: float
    epochs: int
    seconds: float

    def record(self) -> dict[str, Any]:
        return asdict(self)


def optimizer(module: torch.nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(module.parameters(), config.lr, weight_decay=config.weight_decay)


def fit(
    module: lightning.LightningModule,
    train: Iterable[Any],
    val: Iterable[Any],
    test: Iterable[Any],
    config: TrainingConfig,
    folder: Path,
    seed: int,
    *,
    resume: bool,
    progress: bool,
) -> Outcome:
    """Trains, then tests the weights of the best epoch.

    The module logs `val/loss` and `val/score` in validation and `test/score` in the test.

    Args:
        module: Made after `seed` was set.
        train: Batches of an epoch.
        val: Batches of the validation part.
        test: Batches of the test part.
        config: How long.
        folder: For checkpoints and logs.
        seed: Goes into the outcome.
        resume: Go on from the folder's last checkpoint, where there is one.
        progress: Show a bar.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it reports hardware at every training
    # Lightning calls a pytree function that torch has renamed; a batch may be a whole graph, without workers.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    best = ModelCheckpoint(folder, filename="best", monitor=config.monitor, mode=config.mode, save_last=True)
    best.CHECKPOINT_NAME_LAST = "last"
    callbacks: list[lightning.Callback] = [RandomState(), best]
    if config.patience or config.threshold is not None:
        patience = config.patience or config.epochs
        stopping = EarlyStopping(
            config.monitor, mode=config.mode, patience=patience, stopping_threshold=config.threshold
        )
        callbacks.append(stopping)
    if progress:
        callbacks.append(EpochBar(f"seed {seed}"))
    trainer = lightning.Trainer(
        max_epochs=config.epochs,
        accelerator="cpu",
        callbacks=callbacks,
        logger=[CSVLogger(folder, "", ""), TensorBoardLogger(folder, "", "tensorboard")],
        log_every_n_steps=1,
        gradient_clip_val=config.clip or None,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    last = folder / "last.ckpt"
    begin = time.perf_counter()
    trainer.fit(module, train, val, ckpt_path=last if resume and last.exists() else None)
    seconds = time.perf_counter() - begin
    epochs = trainer.current_epoch
    (tested,) = trainer.test(module, test, ckpt_path=best.best_model_path, verbose=False)
    (validated,) = trainer.validate(module, val, ckpt_path=best.best_model_path, verbose=False)
    return Outcome(seed, tested["test/score"], validated["val/score"], epochs, round(seconds, 1))
