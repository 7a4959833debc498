"""What ``graph.reorder()`` gains, by kind of graph: ``python -m experiments.benchmarks.reorder``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from jsonargparse import auto_cli
from torch import Tensor

from experiments.benchmarks.measure import TOLERANCE, seconds_of
from experiments.environment import environment
from graphs.generators import power_law
from graphs.regular import grid
from unified_attn import GATv2, Graph, graph_attention


def shuffled_grid(nodes: int) -> Tensor:
    """A square of nodes joined to their four neighbours, numbered at random."""
    side = int(nodes**0.5)
    return torch.randperm(side * side, generator=torch.Generator().manual_seed(0))[grid(side, side)]


def near_points(nodes: int) -> Tensor:
    """Each of some random points in space hears the eight nearest ones."""
    from scipy.spatial import cKDTree

    points = torch.rand(nodes, 3, generator=torch.Generator().manual_seed(0)).numpy()
    _, found = cKDTree(points).query(points, k=9)
    source = torch.from_numpy(found[:, 1:].copy()).flatten()
    return torch.stack([source, torch.arange(nodes).repeat_interleave(8)])


GRAPHS: dict[str, Callable[[int], Tensor]] = {
    "shuffled grid": shuffled_grid,
    "eight nearest points": near_points,
    "power law": lambda nodes: power_law(nodes, 7 * nodes, seed=0),
}


def reorder(out: Path = Path("outputs/benchmarks"), nodes: int = 200_000, rounds: int = 15) -> dict[str, float]:
    """GATv2 forward and backward (H = 4, C = 32) before and after; about a minute.

    Args:
        out: Folder for reorder.json.
        nodes: N.
        rounds: Runs of each, in turn.

    Returns:
        How many times as fast it is afterwards, by kind of graph.

    Raises:
        ArithmeticError: If the two do not give the same.
    """
    found = {}
    for name, make in GRAPHS.items():
        edge_index = make(nodes)
        graph = Graph(edge_index, num_keys=int(edge_index.max()) + 1)
        near, order = graph.reorder()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(len(order), 4, 32, generator=generator)
        score = GATv2(torch.randn(4, 32, generator=generator) * 32**-0.5)

        def run(x: Tensor, graph: Graph, score: GATv2 = score) -> Tensor:
            out = graph_attention(x, x, x, graph, score=score)
            return torch.autograd.grad(out, x, x.detach())[0]

        before, after = x.requires_grad_(), x.detach()[order].requires_grad_()
        error = float((run(before, graph)[order] - run(after, near)).abs().max())
        if error > TOLERANCE:
            raise ArithmeticError(f"{name}: gradients differ by {error:.1e}")
        sides = partial(run, before, graph), partial(run, after, near)
        times = [tuple(map(seconds_of, sides)) for _ in range(rounds)]
        found[name] = statistics.median(a / b for a, b in times)
        print(f"{name}, {len(order):,} nodes: {found[name]:.2f} times as fast after reorder()", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    where = environment("python -m experiments.benchmarks.reorder", ("numba", "scipy"))
    (out / "reorder.json").write_text(json.dumps({"environment": where, "faster": found}, indent=1) + "\n")
    return found


if __name__ == "__main__":
    auto_cli(reorder, as_positional=False)
