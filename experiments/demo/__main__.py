"""Runs the demo: `python -m experiments.demo --help`."""

from __future__ import annotations

import dataclasses
import json
import logging
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import RichProgressBar
from rich.progress import track

import unified_attn
from experiments.demo import baselines, classifier, decoder, digits, figures, rows, table, text
from experiments.demo.classifier import ClassifierConfig
from experiments.demo.decoder import NEWLINE, DecoderConfig

Part = Literal["table", "text", "graph"]
PARTS: tuple[Part, ...] = ("table", "text", "graph")


def demo(
    out: Path = Path("outputs/demo"),
    parts: tuple[Part, ...] = PARTS,
    quick: bool = False,
    seeds: int = 5,
    repeats: int = 3,
    decoder: DecoderConfig = DecoderConfig(),  # noqa: B008  # jsonargparse reads the defaults from it
    classifier: ClassifierConfig = ClassifierConfig(),  # noqa: B008
) -> int:
    """Checks a table of models against their peers, trains a decoder on text and a classifier on a graph.

    All three go through one call, `attention`. Reruns give the same numbers on the same machine, times apart.

    Args:
        out: Folder for figures, results.json and the decoder's weights.
        parts: What to run.
        quick: A few steps of everything on little data: shows that it runs, not what it can do.
        seeds: Label draws of the classifier.
        repeats: Timed runs of each row of the table.
        decoder: The text model.
        classifier: The graph model.

    Returns:
        Exit status: 1 if a row of the table fails.
    """
    begin = time.perf_counter()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it reports hardware at every training
    # Lightning calls a pytree function that torch has renamed.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
    if quick:
        seeds, repeats = 2, 1
        decoder = dataclasses.replace(decoder, steps=8, dim=64, batch=4, context=64)
        classifier = dataclasses.replace(classifier, epochs=5)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "versions": versions(),
        "config": {"decoder": dataclasses.asdict(decoder), "classifier": dataclasses.asdict(classifier)},
    }
    lines, files, status = [], [], 0
    if "table" in parts:
        verdicts = run_table(repeats)
        results["table"] = [record(v) for v in verdicts]
        failed = sum(not v.passed for v in verdicts)
        status = int(failed > 0)
        lines.append(f"table     {len(verdicts) - failed} of {len(verdicts)} rows PASS at {table.TOLERANCE:g}")
    if "text" in parts:
        results["text"], some = run_text(out, decoder, 200_000 if quick else None)
        files += some
        bits = results["text"]["test_bpc"]
        lines.append(
            "text      " + ", ".join(f"{name} {value:.3f}" for name, value in bits.items()) + " bits/character"
        )
    if "graph" in parts:
        results["graph"], some = run_graph(out, classifier, seeds)
        files += some
        for name, one in results["graph"]["accuracy"].items():
            lines.append(f"graph     {name:<20} {one['mean']:.1%} ± {one['std']:.1%}")
    results["seconds"] = round(time.perf_counter() - begin, 1)
    files.append(out / "results.json")
    files[-1].write_text(json.dumps(results, indent=1) + "\n")
    heading("Summary")
    print("\n".join(lines))
    print("files     " + ", ".join(map(str, files)))
    print(f"time      {results['seconds']:.0f} s")
    return status


def run_table(repeats: int) -> list[table.Verdict]:
    heading("One call, many models: model = mask x bias x score")
    verdicts = [table.check(row, repeats) for row in track(rows.ROWS, "models")]
    print(table.show(verdicts))
    print(
        "output: largest absolute error, float32. gradient: the same of the gradients of all inputs and weights,\n"
        f"those with entries above 1 scaled to 1. PASS: both at most {table.TOLERANCE:g}. speed: the peer's time\n"
        "/ ours, forward and backward, median of runs in turn; below 1 the peer is faster."
    )
    return verdicts


def run_text(out: Path, config: DecoderConfig, limit: int | None) -> tuple[dict[str, Any], list[Path]]:
    lightning.seed_everything(config.seed, verbose=False)
    net = decoder.Decoder(config)
    heading(f"A decoder on text: attention(q, k, v, mask=Causal(), bias={net.blocks[0].attention.bias})")
    corpus = text.standard_library()
    train, validation, test = (part[:limit] for part in (corpus.train, corpus.validation, corpus.test))
    shared = text.shared_lines(test, train)
    print(
        f"Source of Python's standard library, split by package: {len(train):,} characters to train on,\n"
        f"{len(validation):,} to validate, {len(test):,} to test ({', '.join(corpus.packages['test'])}).\n"
        f"Of the lines in the test text that have 30 characters or more, {shared:.1%} are in the training text too."
    )
    numbers = {"train": text.encode(train), "validation": text.encode(validation), "test": text.encode(test)}
    grams = baselines.KneserNey(numbers["train"], order=5, size=len(text.ALPHABET))
    xz_alone, xz_after = baselines.xz_bits_per_character(test, train)
    lines = {
        "5-gram": grams.bits_per_character(numbers["validation"], NEWLINE),
        "xz alone": baselines.xz_bits_per_character(validation, "")[0],
    }

    tensors = {name: torch.from_numpy(part) for name, part in numbers.items()}
    module = decoder.DecoderTraining(net, config)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        val_check_interval=max(config.steps // 5, 1),
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,  # saved once, at the end
        enable_model_summary=False,
        callbacks=[RichProgressBar()],
    )
    began = time.perf_counter()
    glance = decoder.EveryCharacter(tensors["validation"][:20_000], config.context)
    trainer.fit(module, decoder.RandomWindows(tensors["train"], config), glance)
    seconds = time.perf_counter() - began
    trainer.save_checkpoint(out / "decoder.ckpt", weights_only=True)

    net.eval()
    whole = decoder.EveryCharacter(tensors["test"], config.context)
    bits = {
        "decoder": decoder.bits_per_character(net, whole),
        "5-gram": grams.bits_per_character(numbers["test"], NEWLINE),
        "xz alone": xz_alone,
        "xz after training text": xz_after,
    }
    parameters = sum(p.numel() for p in net.parameters())
    seen = config.steps * config.batch * config.context
    print(
        f"\n{parameters:,} parameters, {config.steps} steps, {seen:,} characters in {seconds:.0f} s\n\n"
        "bits per character of the test text, all of it:\n"
        + "\n".join(f"  {value:.3f}  {name}" for name, value in sorted(bits.items(), key=lambda item: item[1]))
        + "\nxz (preset 9e): the test text alone; and what the test text adds to the compressed training text. The\n"
        f"5-gram model and the latter have read all training text, the decoder {seen / len(train):.0%} of it."
    )
    prompt = "class Graph:\n    def __init__(self, "
    sample = net.generate(torch.from_numpy(text.encode(prompt)), 300, config.context, temperature=0.6, seed=0)
    sample_text = text.decode(sample.numpy())
    print("\nA sample, at temperature 0.6:\n\n" + "\n".join("  | " + line for line in sample_text.splitlines()))

    snippet = "def mean(values):\n    return sum(values) / n"
    weights = net.head_weights(torch.from_numpy(text.encode(snippet))).numpy()
    pictures = [
        figures.text_curves(
            out / "text.png", module.train_curve, module.validation_curve, lines, bits, config.batch * config.context
        ),
        figures.heads(out / "heads.png", weights, snippet, repr(net.blocks[0].attention.bias), pick_heads(weights)),
    ]
    return {
        "test_bpc": bits,
        "validation_bpc": {**lines, "decoder": module.validation_curve},
        "train_bpc": module.train_curve,
        "characters": {name: len(part) for name, part in numbers.items()},
        "test_packages": corpus.packages["test"],
        "shared_lines": shared,
        "training_seconds": seconds,
        "sample": sample_text,
    }, [*pictures, out / "decoder.ckpt"]


def pick_heads(weights: np.ndarray) -> list[tuple[int, int, str]]:
    """Six heads, no two alike: the nearest and the furthest looking of the first, middle and last layer."""
    layers = weights.shape[0]
    size = np.arange(weights.shape[-1])
    # Mean distance from query to key.
    reach = (weights * (size[:, None] - size)).sum(-1).mean(-1)
    some = (0, layers // 2, layers - 1)
    chosen = [(layer, int(end(reach[layer]))) for end in (np.argmin, np.argmax) for layer in some]
    return [(layer, head, f"{reach[layer, head]:.1f} characters back on average") for layer, head in chosen]


def run_graph(out: Path, config: ClassifierConfig, seeds: int) -> tuple[dict[str, Any], list[Path]]:
    heading("A classifier on a graph: graph_attention(q, k, k, graph, score=GATv2(att))")
    data = digits.load(config.neighbours, config.eigenvectors)
    print(f"{len(data.labels):,} scanned digits, each joined to its {config.neighbours} nearest: {data.graph!r}")
    scores: dict[str, list[float]] = {}
    first = None
    for seed in track(range(classifier.FIRST_DRAW, classifier.FIRST_DRAW + seeds), "label draws"):
        labels = classifier.Labels(data, seed)
        guesses = digits.baselines(data, labels.nodes.numpy())
        predicted = {name: torch.from_numpy(guess) for name, guess in guesses.items()}
        for name, scale in (("uniform attention", 0.0), ("GATv2", None)):
            net = classifier.train(labels, seed, config, scale)
            with torch.no_grad():
                predicted[name] = net(labels.all_inputs(), data.graph).argmax(1)
        first = (net, labels.all_inputs(), predicted["GATv2"]) if first is None else first
        for name, p in predicted.items():
            scores.setdefault(name, []).append(classifier.accuracy(p, data, labels.nodes))
    table_ = {name: {"mean": float(np.mean(s)), "std": spread(s), "seeds": s} for name, s in scores.items()}
    difference = np.array(scores["GATv2"]) - np.array(scores["label propagation"])
    print("\n".join(f"  {one['mean']:6.1%} ± {one['std']:.1%}  {name}" for name, one in table_.items()))
    print(
        "accuracy on the unlabelled digits, mean and standard deviation over label draws\n"
        f"GATv2 minus label propagation, a draw each, in points: {', '.join(f'{100 * d:+.1f}' for d in difference)}; "
        f"mean {100 * difference.mean():+.2f} ± {100 * spread(difference):.2f}"
    )
    net, inputs, predicted = first
    with torch.no_grad():
        weights = net.first.weights(inputs, data.graph).mean(0).numpy()
    wrong = np.flatnonzero(predicted.numpy() != data.labels)
    centres = [pick_digit(data, np.flatnonzero(predicted.numpy() == data.labels)), pick_digit(data, wrong)]
    pictures = [
        figures.accuracies(out / "accuracy.png", scores),
        figures.digit_graph(
            out / "digits.png",
            data.pixels,
            data.labels,
            predicted.numpy(),
            data.graph.edge_index.numpy(),
            weights,
            centres,
        ),
    ]
    return {"accuracy": table_, "minus_label_propagation": difference.tolist()}, pictures


def pick_digit(data: digits.Digits, among: np.ndarray) -> int:
    """Whose neighbours disagree most about the class: there attention has a choice to make."""
    source, target = data.graph.edge_index.numpy()
    votes = np.zeros((len(data.labels), digits.CLASSES))
    np.add.at(votes, (target, data.labels[source]), 1)
    few = votes.sum(1) <= 12  # a legible picture
    share = votes.max(1) / votes.sum(1)
    return int(among[np.argmin(np.where(few[among], share[among], 2.0))])


def spread(values: Any) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def record(verdict: table.Verdict) -> dict[str, Any]:
    row = {name: value for name, value in vars(verdict.row).items() if name != "make"}
    numbers = {name: value for name, value in vars(verdict).items() if name != "row"}
    return {**row, **numbers, "passed": verdict.passed, "speed": verdict.speed}


def versions() -> dict[str, str]:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "unified_attn": unified_attn.__version__,
        "commit": commit.stdout.strip() if commit.returncode == 0 else "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


def heading(title: str) -> None:
    print(f"\n== {title}\n", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = jsonargparse.ArgumentParser(
        prog="python -m experiments.demo",
        description="Checks a table of models against their peers, trains a decoder on text and a classifier on a "
        "graph, all through one call, `attention`. About two minutes on two cores; reruns give the same numbers.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few steps of everything: shows that it runs, not what it can do"
    )
    parser.add_function_arguments(demo, skip={"quick"})
    given = parser.instantiate(parser.parse_args(arguments))
    return demo(**given.as_dict())


if __name__ == "__main__":
    sys.exit(main())
