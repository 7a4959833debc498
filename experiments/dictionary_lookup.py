"""Learns to look values up by key, which static attention cannot.

    python -m experiments.dictionary_lookup                                          # k = 10: GAT and GATv2
    python -m experiments.dictionary_lookup --sizes '[8, 12, 16, 20]' --models '[gat, gat-8, gatv2, dot]'  # an hour
    python -m experiments.pretrained_lookup                                          # the authors' weights instead

A dictionary is a complete bipartite graph of k queries and k entries. GAT ranks the entries alike for every query, so
that it cannot even fit the dictionaries that it is trained on; GATv2 can. Brody et al., How Attentive are Graph
Attention Networks?, ICLR 2022, arXiv 2105.14491, section 4.1.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib import pyplot as plt

from experiments.layers import Source
from experiments.lookup_models import LookupNet, Model
from experiments.lookup_training import Batches, LookupTraining, share_right
from experiments.training.command import start
from experiments.training.config import Metric, RunConfig, SettingError, TrainingConfig
from experiments.training.figures import STYLE
from experiments.training.job import Job
from experiments.training.run import Outcome, fit
from graphs.dictionary_lookup import dictionary_lookup as dictionaries

Runner = Callable[[int, Path], Outcome]
ACCURACY = Metric("accuracy")
TRAINING = TrainingConfig(
    epochs=60, lr=1e-3, weight_decay=0.0, patience=10, monitor="score", threshold=0.99999, clip=1.0
)


def dictionary_lookup(
    run: RunConfig,
    sizes: list[int] = [10],  # noqa: B006  # jsonargparse reads the defaults
    models: list[Model] = ["gat", "gatv2"],  # noqa: B006
    layers: Source = "unified_attn",
    select: Literal["test", "training"] = "test",
    dropout: float = 0.5,
    batch: int = 1024,
    steps: int = 50,
    training: TrainingConfig = TRAINING,
) -> dict[str, Any]:
    """Trains each model for each size, in a folder each, and draws accuracy by size.

    Args:
        run: Where and how often.
        sizes: Values of k, 2 or more.
        models: `gat`, `gatv2` and `dot` with one head, `gat-8` with eight; all 128 wide.
        layers: Whose layers: ours, or torch-geometric's as a baseline with the same seeds.
        select: By whose accuracy the best epoch is chosen. The authors' program takes the test part, so that what is
            reported is the best that a model came to, not what one may expect of it.
        dropout: Of what the layer gives, in training.
        batch: Dictionaries a step.
        steps: Least steps of an epoch: there are few dictionaries of few keys, and they are shown several times over.
        training: How it is trained.

    Returns:
        Results of each model and size, by `MODEL-SIZE`.
    """
    for name, numbers, least in (("sizes", sizes, 2), ("batch", [batch], 1), ("steps", [steps], 1)):
        if not numbers or min(numbers) < least:
            raise SettingError(f"{name} is {numbers}; give numbers of at least {least}")
    if not 0 <= dropout < 1:
        raise SettingError(f"dropout is {dropout}; it must lie in 0..1, below 1")
    if not models:
        raise SettingError("models is empty; give at least one")
    out = run.out or Path(f"outputs/dictionary_lookup/{layers}")
    jobs = {}
    for size in sizes:
        for model in models:
            settings = {
                "size": size,
                "model": model,
                "layers": layers,
                "select": select,
                "dropout": dropout,
                "batch": batch,
                "steps": steps,
                "training": dataclasses.asdict(training),
            }
            own = dataclasses.replace(run, out=out / f"{model}-{size}")
            jobs[size, model] = Job(own, "", settings, ACCURACY)
    results = {}
    for (size, model), job in jobs.items():
        print(f"k = {size}, {model}")
        results[f"{model}-{size}"] = job.repeat(runner(job, training))
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, out / "accuracy.png")
    return results


def runner(job: Job, training: TrainingConfig) -> Runner:
    """What trains one model on one seed."""
    size, model, layers, batch = (job.settings[name] for name in ("size", "model", "layers", "batch"))
    data = dictionaries(size)

    def one(seed: int, folder: Path) -> Outcome:
        module = LookupTraining(LookupNet(size, model, layers, job.settings["dropout"]), training)
        train = Batches(data, data.split.train, batch, layers, shuffle=True, steps=job.settings["steps"])
        seen, unseen = (Batches(data, part, batch, layers) for part in (data.split.train, data.split.test))
        chosen = unseen if job.settings["select"] == "test" else seen
        run = job.run
        outcome = fit(
            module, train, chosen, unseen, training, ACCURACY, folder, seed, resume=run.resume, progress=run.progress
        )
        return dataclasses.replace(outcome, train=share_right(module.net.eval(), data, data.split.train, layers))

    return one


def draw(results: dict[str, Any], out: Path) -> None:
    """Accuracy by size, two lines a model: training solid, test dashed."""
    runs = [result["settings"] | result for result in results.values()]
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
        for color, model in zip(mpl.color_sequences["tab10"], dict.fromkeys(r["model"] for r in runs), strict=False):
            own = sorted((r for r in runs if r["model"] == model), key=lambda r: r["size"])
            sizes = [r["size"] for r in own]
            for part, style, fill in (("train", "o-", color), ("test", "s--", "white")):
                means, deviations = ([r[part][what] or 0.0 for r in own] for what in ("mean", "std"))
                label = f"{model}, {'training' if part == 'train' else 'test'}"
                looks = {"color": color, "markerfacecolor": fill, "markersize": 5, "capsize": 2}
                axes.errorbar(sizes, means, deviations, fmt=style, label=label, **looks)
        axes.set(
            xlabel="k, keys of a dictionary",
            ylabel="accuracy",
            ylim=(0, 1.05),
            xticks=sorted({r["size"] for r in runs}),
        )
        figure.legend(frameon=False, loc="outside right")
        figure.savefig(out, dpi=150)
        plt.close(figure)


if __name__ == "__main__":
    start(dictionary_lookup)
