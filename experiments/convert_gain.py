"""What `convert(model)` gains: `python -m experiments.convert_gain`, a training step before and after, side by side."""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from experiments.environment import environment
from experiments.growth import grown, in_fresh_process
from experiments.training.job import PACKAGES, command
from graphs.edges import without_loops
from graphs.generators import power_law
from unified_attn.interop.pyg import convert


@dataclass
class Size:
    """Graph and layers.

    Args:
        nodes: N; the default is that of ogbn-arxiv.
        edges: E.
        inputs: Size of a node's features.
        heads: H.
        channels: C, size of a head.
    """

    nodes: int = 169_343
    edges: int = 1_166_243
    inputs: int = 128
    heads: int = 4
    channels: int = 32


Builder = Callable[[Size, "int | None"], nn.Module]
FEATURES = 16  # of an edge, in the cases that have some


def _layer(kind: type[nn.Module]) -> Builder:
    return lambda size, edge_dim: kind(size.inputs, size.channels, size.heads, edge_dim=edge_dim)


def _net(size: Size, edge_dim: int | None) -> nn.Module:
    return pyg.GAT(size.inputs, size.heads * size.channels, 3, v2=True, heads=size.heads, edge_dim=edge_dim)


CASES: dict[str, tuple[Builder, int | None]] = {
    "GATConv": (_layer(pyg.GATConv), None),
    "GATv2Conv": (_layer(pyg.GATv2Conv), None),
    "TransformerConv": (_layer(pyg.TransformerConv), None),
    "GATv2Conv, edge features": (_layer(pyg.GATv2Conv), FEATURES),
    "TransformerConv, edge features": (_layer(pyg.TransformerConv), FEATURES),
    "GAT(v2=True), three layers": (_net, None),
}
"""Models of torch-geometric, and the size of their edges' features."""


def problem(name: str, size: Size) -> tuple[nn.Module, tuple[Tensor | None, ...]]:
    """A model of torch-geometric with features, edges and features of edges, the same each time."""
    torch.manual_seed(0)
    make, edge_dim = CASES[name]
    model = nn.ModuleList([make(size, edge_dim)])  # a model's own layer is replaced; a bare layer has no owner
    edges = without_loops(power_law(size.nodes, size.edges, seed=0))  # they and we treat a caller's own loops apart
    edge_attr = None if edge_dim is None else torch.randn(edges.shape[1], edge_dim)
    return model, (torch.randn(size.nodes, size.inputs), edges, edge_attr)


def run(model: nn.Module, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    out: Tensor = model[0](x, edge_index, edge_attr=edge_attr)
    return out


def step(model: nn.Module, inputs: tuple[Tensor | None, ...]) -> float:
    """Seconds of a forward and a backward pass."""
    model.zero_grad()
    begin = time.perf_counter()
    run(model, *inputs).square().mean().backward()
    return time.perf_counter() - begin


def growth(name: str, ours: bool, size: Size) -> int:
    """Bytes by which a step lets a fresh process grow, after a step on a small graph."""
    small = Size(100, 500, size.inputs, size.heads, size.channels)
    peaks = []
    for one in (small, size):
        model, inputs = problem(name, one)
        peaks.append(grown(partial(step, convert(model) if ours else model, inputs)))
    return peaks[-1]


def difference(theirs: list[Tensor], ours: list[Tensor]) -> float:
    """The greatest difference, measured by the greatest number."""
    with torch.no_grad():
        apart = max(float((a - b).abs().max()) for a, b in zip(theirs, ours, strict=True))
        return apart / max(float(a.abs().max()) for a in theirs)


def measure(name: str, size: Size, repeats: int) -> dict[str, Any]:
    """Verifies that outputs and gradients are the same, then times theirs and ours in turn.

    Raises:
        RuntimeError: If they differ.
    """
    theirs, inputs = problem(name, size)
    ours = convert(copy.deepcopy(theirs))
    outs = [run(model, *inputs) for model in (theirs, ours)]
    for out in outs:
        out.square().mean().backward()
    grads = [[parameter.grad for parameter in model.parameters()] for model in (theirs, ours)]
    # By the greatest of all gradients: some are 0 but for rounding, as that of a key's bias under a softmax.
    error = max(difference(outs[:1], outs[1:]), difference(*grads))
    if not error < 1e-3:
        raise RuntimeError(f"{name}: converted and original model differ by {error:.1e}")
    del outs, grads
    seconds = [(step(theirs, inputs), step(ours, inputs)) for _ in range(repeats)]
    peaks = [in_fresh_process(growth, name, mine, size) for mine in (False, True)]
    before, after = (statistics.median(side) for side in zip(*seconds, strict=True))
    return {
        "model": name,
        "times_as_fast": statistics.median(a / b for a, b in seconds),
        "seconds_before": before,
        "seconds_after": after,
        "mib_before": peaks[0] / 2**20,
        "mib_after": peaks[1] / 2**20,
        "error": error,
    }


def gain(size: Size | None = None, repeats: int = 5, out: Path = Path("outputs/convert_gain")) -> list[dict[str, Any]]:
    """A training step of torch-geometric's attention layers and models before and after `convert`, verified first.

    About ten minutes on two cores, and 10 GiB, at the default size.

    Args:
        size: Of graph and layers.
        repeats: Timed steps of each, in turn.
        out: Folder for results.json.

    Returns:
        A record a model.
    """
    size = size or Size()
    records = []
    print("| model | times as fast | step before, s | after, s | growth before, MiB | after, MiB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in CASES:
        r = measure(name, size, repeats)
        records.append(r)
        print(
            f"| {r['model']} | {r['times_as_fast']:.1f} | {r['seconds_before']:.2f} | {r['seconds_after']:.2f} | "
            f"{r['mib_before']:.0f} | {r['mib_after']:.0f} |",
            flush=True,
        )
    out.mkdir(parents=True, exist_ok=True)
    where = environment(command(), PACKAGES)
    (out / "results.json").write_text(
        json.dumps({"environment": where, "size": asdict(size), "rows": records}, indent=1)
    )
    return records


if __name__ == "__main__":
    jsonargparse.auto_cli(gain, as_positional=False)
