"""Looks values up by key, which static attention cannot: `python -m experiments.dictionary_lookup --help`.

    python -m experiments.dictionary_lookup --sizes '[4, 10]' --models '[gat, gatv2]'
    python -m experiments.dictionary_lookup --pretrained true          # the authors' weights, k = 10

Brody et al., How Attentive are Graph Attention Networks?, ICLR 2022, arXiv 2105.14491, section 4.1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import lightning
import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.environment import environment
from experiments.layers import Source, layer
from experiments.training.config import TrainingConfig
from experiments.training.job import PACKAGES, command, plain
from experiments.training.run import fit, optimizer
from graphs.dictionary_lookup import DictionaryLookup, dictionary_lookup
from unified_attn import Graph

Model = Literal["gat", "gat-8", "gatv2", "dot"]
WIDTH = 128
AUTHORS = {"gat-8": "gat_128_s10.npz", "gatv2": "gatv2_128_s10.npz"}


class LookupNet(nn.Module):
    """Codes ``[G, 2k, 2]`` to logits of the queries' values, ``[G, k, k]``: embeddings, one layer, one linear map."""

    def __init__(self, size: int, model: Model, source: Source) -> None:
        super().__init__()
        self.size = size
        self.layer0_keys, self.layer0_values = (nn.Embedding(size + 1, WIDTH) for _ in range(2))
        heads = 8 if model == "gat-8" else 1
        # As the authors' program has them: GAT with loops and a bias, GATv2 without, its two matrices one.
        if model == "gatv2":
            made = layer(source, "gatv2", WIDTH, WIDTH, 1, add_self_loops=False, share_weights=True, bias=False)
        elif model == "dot":
            made = layer(source, "transformer", WIDTH, WIDTH, 1, root_weight=False, bias=False)
        else:
            made = layer(source, "gat", WIDTH, WIDTH // heads, heads)
        self.layers = nn.ModuleList([made])
        self.out_layer = nn.Linear(WIDTH, size, bias=False)

    def forward(self, x: Tensor, edges: Graph | Tensor) -> Tensor:
        nodes = (self.layer0_keys(x[..., 0]) + self.layer0_values(x[..., 1])).relu().flatten(0, 1)
        nodes = self.layers[0](nodes, edges)
        return self.out_layer(nodes).unflatten(0, x.shape[:2])[:, : self.size]


class Batches:
    """Dictionaries in batches of one size, each the same graph over and over, side by side."""

    def __init__(self, data: DictionaryLookup, chosen: Tensor, batch: int, source: Source, *, shuffle: bool) -> None:
        self.data, self.chosen, self.shuffle = data, chosen, shuffle
        self.batch = min(batch, max(len(chosen), 1))
        self.source = source
        self.edges = {n: self.packed(n) for n in {self.batch, len(chosen) % self.batch} if n}

    def packed(self, count: int) -> Graph | Tensor:
        nodes = 2 * self.data.size
        shift = torch.arange(count).repeat_interleave(self.data.edge_index.shape[1]) * nodes
        edges = self.data.edge_index.repeat(1, count) + shift
        return Graph(edges, num_keys=count * nodes) if self.source == "unified_attn" else edges

    def __len__(self) -> int:
        return -(-len(self.chosen) // self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Graph | Tensor]]:
        order = self.chosen[torch.randperm(len(self.chosen))] if self.shuffle else self.chosen
        for graphs in order.split(self.batch):
            yield self.data.x[graphs], self.data.y[graphs], self.edges[len(graphs)]


class LookupTraining(lightning.LightningModule):
    """Cross-entropy over the queries. Validated on the training part: the task asks whether it can be fitted."""

    def __init__(self, net: LookupNet, config: TrainingConfig) -> None:
        super().__init__()
        self.net, self.config = net, config

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self, self.config)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, index: int) -> Any:
        return batch  # a CPU job, and a graph is no tensor

    def step(self, batch: tuple[Tensor, Tensor, Graph | Tensor]) -> tuple[Tensor, Tensor]:
        x, y, edges = batch
        logits = self.net(x, edges)
        return cross_entropy(logits.flatten(0, 1), y.flatten()), (logits.argmax(-1) == y).double().mean()

    def training_step(self, batch: tuple[Tensor, Tensor, Graph | Tensor], index: int) -> Tensor:
        loss, _ = self.step(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor, Graph | Tensor], index: int) -> None:
        loss, right = self.step(batch)
        self.log_dict({"val/loss": loss, "val/score": right}, batch_size=len(batch[0]))

    def test_step(self, batch: tuple[Tensor, Tensor, Graph | Tensor], index: int) -> None:
        self.log("test/score", self.step(batch)[1], batch_size=len(batch[0]))


def train(size: int, model: Model, layers: Source, training: TrainingConfig, batch: int, folder: Path) -> dict:
    """Accuracy over queries on the training and test dictionaries after training."""
    data = dictionary_lookup(size)
    lightning.seed_everything(training_seed := 0, verbose=False)
    module = LookupTraining(LookupNet(size, model, layers), training)
    parts = [
        Batches(data, data.split.train, batch, layers, shuffle=True),
        Batches(data, data.split.train, batch, layers, shuffle=False),
        Batches(data, data.split.test, batch, layers, shuffle=False),
    ]
    outcome = fit(module, *parts, training, folder, training_seed, resume=False, progress=True)
    record = {"size": size, "model": model, "train": outcome.val, "test": outcome.test, "epochs": outcome.epochs}
    print(f"k = {size}, {model}: train {outcome.val:.3f}, test {outcome.test:.3f} after {outcome.epochs} epochs")
    return record


def authors(layers: Source) -> dict[str, float]:
    """Accuracy over queries of the authors' own weights for k = 10, on all dictionaries."""
    data = dictionary_lookup(10)
    folder = Path(os.environ.get("UNIFIED_ATTN_DATA", "data")) / "pretrained/gatv2_dictionarylookup"
    found: dict[str, float] = {}
    for model, file in AUTHORS.items():
        if not (folder / file).exists():
            raise FileNotFoundError(
                f"{folder / file} is missing: the weights of github.com/tech-srl/how_attentive_are_gats as npz"
            )
        net = LookupNet(10, model, layers).eval()
        with np.load(folder / file) as arrays:
            weights = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        net.load_state_dict(renamed(weights, net))
        right = total = 0
        with torch.inference_mode():
            for x, y, edges in Batches(data, torch.arange(len(data.x)), 1000, layers, shuffle=False):
                right += int((net(x, edges).argmax(-1) == y).sum())
                total += y.numel()
        found[model] = right / total
        print(f"authors' {model}, k = 10: {found[model]:.4f} of {total:,} queries")
    return found


def renamed(weights: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Their GAT keeps one matrix under two names, where a layer over one node set has one name."""
    known = net.state_dict()
    if "layers.0.lin_dst.weight" in weights and "layers.0.lin_dst.weight" not in known:
        if not torch.equal(weights["layers.0.lin_dst.weight"], weights["layers.0.lin_src.weight"]):
            raise ValueError("the file's lin_src and lin_dst differ, but the layer has one matrix")
        source = "layers.0.lin.weight" if "layers.0.lin.weight" in known else "layers.0.lin_src.weight"
        weights = {name: w for name, w in weights.items() if name != "layers.0.lin_dst.weight"}
        weights[source] = weights.pop("layers.0.lin_src.weight")
    return weights


def draw(records: list[dict[str, Any]], out: Path) -> None:
    """Accuracy by size, a line a model: training solid, test dashed."""
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
        for color, model in zip(mpl.color_sequences["tab10"], dict.fromkeys(r["model"] for r in records), strict=False):
            own = sorted((r["size"], r["train"], r["test"]) for r in records if r["model"] == model)
            sizes, train_scores, test_scores = zip(*own, strict=True)
            axes.plot(sizes, train_scores, "o-", color=color, label=model, markersize=3)
            axes.plot(sizes, test_scores, "o--", color=color, markersize=3)
        axes.set(xlabel="k, keys of a dictionary", ylabel="accuracy", ylim=(0, 1.05))
        axes.legend(frameon=False, title="train solid, test dashed")
        figure.savefig(out, dpi=150)
        plt.close(figure)


def lookup(
    sizes: list[int] = [4, 6, 8, 10, 12, 14, 16, 18, 20],  # noqa: B006  # jsonargparse reads the default
    models: list[Model] = ["gat", "gat-8", "gatv2", "dot"],  # noqa: B006
    layers: Source = "unified_attn",
    pretrained: bool = False,
    batch: int = 512,
    training: TrainingConfig | None = None,
    out: Path = Path("outputs/dictionary_lookup"),
) -> dict[str, Any]:
    """Trains each model for each size, and draws accuracy by size; or runs the authors' weights.

    A dictionary is a complete bipartite graph of k queries and k entries. GAT ranks the entries alike for every query,
    so that it cannot fit the task; GATv2 can. One model takes one to ten minutes on two cores, by size.

    Args:
        sizes: Values of k.
        models: `gat` and `gatv2` and `dot` with one head, `gat-8` with eight; all 128 wide.
        layers: Whose layers: ours, or torch-geometric's.
        pretrained: Evaluate the authors' weights for k = 10 instead of training.
        batch: Dictionaries a step.
        training: How long.
        out: Folder for results.json, figure, checkpoints and logs.

    Returns:
        What results.json holds.
    """
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"environment": environment(command(), PACKAGES)}
    if pretrained:
        results["pretrained"] = authors(layers)
        (out / "pretrained.json").write_text(json.dumps(results, indent=1) + "\n")
        return results
    training = training or TrainingConfig(
        epochs=100, lr=1e-3, weight_decay=0.0, patience=15, monitor="val/score", threshold=1.0
    )
    results |= {"settings": {"batch": batch, "layers": layers, **plain(training)}, "runs": []}
    for size in sizes:
        for model in models:
            record = train(size, model, layers, training, batch, out / f"{model}-{size}")
            results["runs"].append(record)
            (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results["runs"], out / "accuracy.png")
    return results


if __name__ == "__main__":
    jsonargparse.auto_cli(lookup, as_positional=False)
