"""Biases by name: each makes the library's object, and says from the definition what it does to an entry."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.parity import oracle
from tests.parity.bias_case import BiasCase, Exact, number_of_edges, rope
from tests.parity.grid import Grid
from tests.parity.mask_cases import MaskCase, random_edges
from tests.parity.vector_cases import VECTORS
from unified_attn import Additive, ALiBi, DenseBias, EdgeBias


def alibi(g: Grid, m: MaskCase) -> BiasCase:
    slopes = torch.tensor(oracle.ALIBI_SLOPES[g.heads], dtype=torch.float64)[:, None, None]
    return BiasCase(ALiBi(g.heads), dense=[lambda x: -slopes * (g.at_i - g.at_j).abs()])


def edge(g: Grid, m: MaskCase, *heads: int, hidden: bool = False) -> BiasCase:
    shape = (number_of_edges(m), *heads)
    name, values = g.leaf("edge values", *shape, hidden=g.coin(*shape, chance=0.3) if hidden else None)
    return BiasCase(EdgeBias(values), tied=[lambda x: x[name].T if heads else x[name][None]])


def own_edges(g: Grid, *heads: int, default: float = 0.0) -> BiasCase:
    """A value for each pair that edges of its own name, the parallel ones summed; ``default`` elsewhere."""
    edges = random_edges(g)
    name, values = g.leaf("own edge values", edges.shape[1], *heads)
    columns = heads[0] if heads else 1
    named = torch.zeros(g.queries, g.keys, dtype=torch.bool)
    named[edges[1], edges[0]] = True

    def add(x: Exact) -> Tensor:
        pick = torch.zeros(edges.shape[1], g.queries, g.keys, dtype=x[name].dtype)  # one-hot: which pair an edge names
        pick[torch.arange(edges.shape[1]), edges[1], edges[0]] = 1.0
        sums = torch.einsum("eh,eij->hij", x[name].reshape(-1, columns), pick)
        return torch.where(named, sums, default)

    return BiasCase(EdgeBias(values, edges, default=default), dense=[add])


def dense(g: Grid, *shape: int, hidden: bool = False) -> BiasCase:
    where_hidden = None
    if hidden:
        where_hidden = g.coin(*shape, chance=0.3)
        where_hidden[..., -1:, :] = True  # a whole row, so that hidden and merely low differ
    name, values = g.leaf("dense values", *shape, hidden=where_hidden)
    return BiasCase(DenseBias(values), dense=[lambda x: x[name]])


def additive(g: Grid) -> BiasCase:
    """A function that captures a learned tensor and depends on all four indices."""
    name, slope = g.leaf("captured", g.heads)

    def values(slope: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return slope[h] * (0.3 * (i - 2 * j + b)).cos()

    return BiasCase(
        Additive(lambda b, h, i, j: values(slope, b, h, i, j)),
        dense=[lambda x: values(x[name], g.b, g.h, g.at_i, g.at_j)],
    )


BIASES: dict[str, Callable[[Grid, MaskCase], BiasCase]] = {
    "none": lambda g, m: BiasCase(None),
    "alibi": alibi,
    "rope half": lambda g, m: rope(g, "half"),
    "rope interleaved": lambda g, m: rope(g, "interleaved", base=500.0),
    "rope part": lambda g, m: rope(g, "half", part=True, start=3),
    "rope part interleaved": lambda g, m: rope(g, "interleaved", part=True),
    "own edges [E]": lambda g, m: own_edges(g),
    "own edges [E,H]": lambda g, m: own_edges(g, g.heads, default=-0.5),
    "dense []": lambda g, m: dense(g),
    "dense [H,1,1]": lambda g, m: dense(g, g.heads, 1, 1),
    "dense [Nq,Nk]": lambda g, m: dense(g, g.queries, g.keys),
    "dense [B,1,1,Nk]": lambda g, m: dense(g, g.batch, 1, 1, g.keys),
    "dense [B,H,Nq,Nk]": lambda g, m: dense(g, *g.full),
    "dense hidden": lambda g, m: dense(g, 1, g.heads, g.queries, g.keys, hidden=True),
    "additive": lambda g, m: additive(g),
    "alibi + dense": lambda g, m: alibi(g, m) + dense(g, g.heads, 1, g.keys),
    "rope + own edges": lambda g, m: rope(g, "half") + own_edges(g, g.heads),
    "dense hidden + additive": lambda g, m: dense(g, g.queries, g.keys, hidden=True) + additive(g),
    "edge [E]": lambda g, m: edge(g, m),
    "edge [E,H]": lambda g, m: edge(g, m, g.heads),
    "edge hidden": lambda g, m: edge(g, m, g.heads, hidden=True),
    "rope + edge": lambda g, m: rope(g, "interleaved") + edge(g, m),
    "edge + own edges + alibi": lambda g, m: edge(g, m, g.heads) + own_edges(g) + alibi(g, m),
    **VECTORS,
}

NEEDS_EDGES = frozenset(
    name
    for name in BIASES
    if name.startswith(("edge", "pair"))
    or name.endswith(("edge", "pair both", "projection"))
    or name.startswith("projection")
)
"""Biases that are tied to the edges of a graph."""

NEEDS_EVEN = frozenset(name for name in BIASES if "rope" in name and "part" not in name)
"""Biases that turn all coordinates in pairs."""
