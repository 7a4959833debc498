"""A whole training, ours and torch-geometric's layer in turn: ``python -m experiments.benchmarks.training``."""

from __future__ import annotations

import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from jsonargparse import auto_cli
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu

from experiments.environment import environment
from experiments.layers import layer
from graphs.datasets import planetoid
from graphs.nodes import NodeData
from unified_attn.interop.pyg import convert


class Net(nn.Module):
    """Two layers of torch-geometric's GATv2, at the sizes of the GAT paper.

    Args:
        inputs: Size of a node's features.
        classes: How many.
        drop_inputs: Whether features are dropped too, as in the paper: by torch, so that it takes either side as long.
    """

    def __init__(self, inputs: int, classes: int, drop_inputs: bool) -> None:
        super().__init__()
        self.drop_inputs = 0.6 if drop_inputs else 0.0
        self.first = layer("torch_geometric", "gatv2", inputs, 8, 8, dropout=0.6)
        self.second = layer("torch_geometric", "gatv2", 64, classes, 1, dropout=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.drop_inputs:
            x = dropout(x, self.drop_inputs, self.training)
        x = elu(self.first(x, edge_index))
        out: Tensor = self.second(dropout(x, 0.6, self.training), edge_index)
        return out


def trained(net: nn.Module, data: NodeData, epochs: int) -> tuple[float, float]:
    """Seconds, and accuracy on the test part."""
    split = data.splits[0]
    optimizer = torch.optim.Adam(net.parameters(), 0.005, weight_decay=5e-4)
    torch.manual_seed(0)
    net.train()
    begin = time.perf_counter()
    for _ in range(epochs):
        optimizer.zero_grad()
        cross_entropy(net(data.x, data.edge_index)[split.train], data.y[split.train]).backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        right = net.eval()(data.x, data.edge_index)[split.test].argmax(1) == data.y[split.test]
    return seconds, float(right.float().mean())


def compared(data: NodeData, drop_inputs: bool, epochs: int, rounds: int) -> dict[str, Any]:
    """Trainings of ours and the peer in turn, from the same weights; only the line ``convert(net)`` differs."""
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "peer": []}
    for seed in range(rounds + 1):
        torch.manual_seed(seed)
        peer = Net(data.x.shape[1], data.num_classes, drop_inputs)
        ours = convert(copy.deepcopy(peer))
        with torch.no_grad():
            logits = [net.eval()(data.x, data.edge_index) for net in (ours, peer)]
        if not torch.allclose(*logits, atol=1e-4):
            raise ArithmeticError("the converted model gives other logits")
        for name, net in (("ours", ours), ("peer", peer)):
            result = trained(net, data, epochs if seed else 3)  # the first is not counted
            found[name] += [result] if seed else []
    ratios = [peer[0] / ours[0] for ours, peer in zip(found["ours"], found["peer"], strict=True)]
    without = "" if drop_inputs else ", features not dropped"
    return {
        "case": f"two layers of GATv2 on Cora, {epochs} epochs{without}",
        "peer": "torch-geometric",
        "ratio": statistics.median(ratios),
        **{f"{name}_seconds": statistics.median(s for s, _ in runs) for name, runs in found.items()},
        **{f"{name}_accuracy": statistics.mean(a for _, a in runs) for name, runs in found.items()},
        "rounds": rounds,
    }


def training(epochs: int = 200, rounds: int = 5, out: Path = Path("outputs/benchmarks")) -> dict[str, Any]:
    """Two layers of GATv2 on Cora, with dropout of the features as in the paper, and without.

    Args:
        epochs: Of each training.
        rounds: Trainings of each, in turn, from other weights each time.
        out: Folder for training.json.

    Returns:
        What training.json holds.
    """
    data = planetoid("Cora")
    rows = [compared(data, drop_inputs, epochs, rounds) for drop_inputs in (True, False)]
    for row in rows:
        print(
            f"{row['case']}: {row['ratio']:.2f} times as fast as torch-geometric's layer, "
            f"accuracy {row['ours_accuracy']:.3f} and {row['peer_accuracy']:.3f}"
        )
    where = environment("python -m experiments.benchmarks.training", ("numba", "torch-geometric"))
    record = {"rows": rows, "environment": where}
    out.mkdir(parents=True, exist_ok=True)
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


if __name__ == "__main__":
    auto_cli(training, as_positional=False)
