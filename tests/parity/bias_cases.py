"""Biases by name: each makes the library's object, and says from the definition what it does to an entry."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.parity import oracle
from tests.parity.bias_case import BiasCase, Exact, number_of_edges, rope
from tests.parity.grid import Grid
from tests.parity.mask_cases import MaskCase, random_edges
from tests.parity.vector_cases import VECTORS
from unified_attn import (
    NTK,
    Additive,
    ALiBi,
    DenseBias,
    DynamicNTK,
    EdgeBias,
    EdgeFeatures,
    EdgeTypes,
    Llama3,
    LogPrior,
    NodeTypes,
    PathFeatures,
    PositionInterpolation,
    RelativeBias,
    RoPE,
    ShortestPath,
    T5Bias,
    YaRN,
)


def alibi(g: Grid, m: MaskCase) -> BiasCase:
    slopes = torch.tensor(oracle.ALIBI_SLOPES[g.heads], dtype=torch.float64)[:, None, None]
    return BiasCase(ALiBi(g.heads), dense=[lambda x: -slopes * (g.at_i - g.at_j).abs()])


def rope_linear(g: Grid) -> BiasCase:
    rotary = (g.dim - 1) // 2 * 2  # the last coordinates stay, unscaled
    bias = RoPE(g.dim, 100.0, layout="interleaved", scaling=PositionInterpolation(3.0), rotary_dim=rotary)
    rates = [100.0 ** (-2 * p / rotary) / 3.0 for p in range(rotary // 2)]
    return BiasCase(bias, turn=lambda at: oracle.rotations(at, g.dim, "interleaved", rotary, rates=rates))


def rope_ntk(g: Grid) -> BiasCase:
    base = 50.0 * 4.0 ** (g.dim / (g.dim - 2))
    bias = RoPE(g.dim, 50.0, scaling=NTK(4.0))
    return BiasCase(bias, turn=lambda at: oracle.rotations(at, g.dim, "half", g.dim, base))


def rope_dynamic(g: Grid) -> BiasCase:
    """The length is that of the keys of this call, here beyond the trained 4."""
    length = max(int(g.k_positions.max()) + 2 + 1, 4) if g.k_positions.numel() else 4
    base = 30.0 * (2.0 * length / 4 - 1.0) ** (g.dim / (g.dim - 2))
    bias = RoPE(g.dim, 30.0, scaling=DynamicNTK(2.0, max_position=4), start=2)
    return BiasCase(bias, turn=lambda at: oracle.rotations(at + 2, g.dim, "half", g.dim, base))


def rope_yarn(g: Grid) -> BiasCase:
    bias = RoPE(g.dim, 20.0, layout="interleaved", scaling=YaRN(8.0, 40, beta_fast=6))
    rates = oracle.yarn_rates(g.dim, 20.0, 8.0, 40, fast=6)
    magnitude = 0.1 * math.log(8.0) + 1.0
    return BiasCase(
        bias, turn=lambda at: oracle.rotations(at, g.dim, "interleaved", g.dim, rates=rates, magnitude=magnitude)
    )


def rope_llama3(g: Grid) -> BiasCase:
    bias = RoPE(g.dim, 500.0, scaling=Llama3(8.0, 1.0, 4.0, max_position=60))
    rates = oracle.llama3_rates(g.dim, 500.0, 8.0, 1.0, 4.0, 60)
    return BiasCase(bias, turn=lambda at: oracle.rotations(at, g.dim, "half", g.dim, rates=rates))


def learn(g: Grid, module: nn.Module) -> str:
    """Gives a module's weight random values, and the weight itself its gradient; the name of it."""
    name, values = g.leaf("weight", *module.weight.shape)
    module.weight = nn.Parameter(values.detach())
    g.given[name] = module.weight
    return name


def t5(g: Grid, buckets: int, most: int, *, both: bool) -> BiasCase:
    bias = T5Bias(g.heads, buckets, most, both)
    name = learn(g, bias)
    distances = (g.at_j - g.at_i)[:, 0]
    codes = [oracle.t5_bucket(d, buckets, most, both) for d in distances.flatten().tolist()]
    bucket = torch.tensor(codes, dtype=torch.int64).reshape(distances.shape)
    return BiasCase(bias, dense=[lambda x: x[name][bucket].permute(0, 3, 1, 2)])


def relative(g: Grid) -> BiasCase:
    bias = RelativeBias(g.heads, max_distance=3)
    name = learn(g, bias)
    place = (g.at_j - g.at_i).clamp(-3, 3)[:, 0] + 3
    return BiasCase(bias, dense=[lambda x: x[name].T[place].permute(0, 3, 1, 2)])


def node_types(g: Grid) -> BiasCase:
    module = NodeTypes(3, g.heads)
    name = learn(g, module)
    queries, keys = g.integers(3, g.batch, g.queries), g.integers(3, g.keys)
    one = torch.eye(3, dtype=torch.float64)

    def add(x: Exact) -> Tensor:
        return torch.einsum("bis,jt,hst->bhij", one[queries].to(x[name].dtype), one[keys].to(x[name].dtype), x[name])

    return BiasCase(module(queries, keys), dense=[add])


def by_length(x: Tensor, distance: Tensor, most: int) -> Tensor:
    """Values of lengths [B, Nq, Nk] from a table [most + 2, H]."""
    pick = torch.where(distance == -1, most + 1, torch.where(distance > most, most, distance))
    return x[pick].permute(0, 3, 1, 2)


def shortest_path(g: Grid) -> BiasCase:
    module = ShortestPath(3, g.heads)
    name = learn(g, module)
    distance = g.integers(7, g.batch, g.queries, g.keys) - 1
    return BiasCase(module(distance), dense=[lambda x: by_length(x[name], distance, 3)])


def path_blocks(g: Grid) -> BiasCase:
    """Two graphs and an empty one between them. Blocks are square: other sizes take a table of both."""
    module = ShortestPath(2, g.heads)
    name = learn(g, module)
    rows, columns = (torch.arange(n) < n // 2 for n in (g.queries, g.keys))
    together = rows[:, None] == columns
    distance = g.integers(6, g.queries, g.keys) - 1
    if g.queries == g.keys:
        half = g.queries // 2
        bias = module([distance[:half, :half], distance[:0, :0], distance[half:, half:]])
        return BiasCase(bias, dense=[lambda x: torch.where(together, by_length(x[name], distance[None], 2), 0.0)])
    return BiasCase(module(distance), dense=[lambda x: by_length(x[name], distance[None], 2)])


def path_features(g: Grid) -> BiasCase:
    """Paths of 0 to 2 of 6 edges, where 3 would have had a weight."""
    module = PathFeatures(2, max_length=3, num_heads=g.heads)
    name = learn(g, module)
    attr, values = g.leaf("path edge features", 6, 2)
    paths = g.integers(6, g.batch, g.queries, g.keys, 2)
    length = g.integers(3, g.batch, g.queries, g.keys)
    paths = torch.where(torch.arange(2) < length[..., None], paths, -1)
    on_path = torch.nn.functional.one_hot(paths + 1, 7)[..., 1:].double()  # which edge is where on the path

    def add(x: Exact) -> Tensor:
        sums = torch.einsum("bijne,ef,nhf->bhij", on_path.to(x[attr].dtype), x[attr], x[name][:2])
        return sums / length.clamp(min=1)[:, None]

    return BiasCase(module(values, paths), dense=[add])


def prior_leaf(g: Grid, *shape: int) -> tuple[str, Tensor]:
    """Positive numbers with zeros among them."""
    name, raw = g.leaf("prior", *shape)
    values = torch.where(g.coin(*shape, chance=0.3), 0.0, raw.detach().abs() + 0.1)
    g.given[name] = values.to(g.dtype).requires_grad_()
    return name, g.given[name]


def log_of(x: Tensor) -> Tensor:
    return torch.where(x == 0, -torch.inf, torch.where(x == 0, 1.0, x).log())


def log_prior(g: Grid) -> BiasCase:
    name, prior = prior_leaf(g, 1, g.heads, g.queries, g.keys)
    return BiasCase(LogPrior(prior), dense=[lambda x: log_of(x[name])])


def edge_prior(g: Grid, m: MaskCase) -> BiasCase:
    name, prior = prior_leaf(g, number_of_edges(m), g.heads)
    return BiasCase(LogPrior(prior), tied=[lambda x: log_of(x[name]).T])


def edge_features(g: Grid, m: MaskCase) -> BiasCase:
    module = EdgeFeatures(3, g.heads)
    name = learn(g, module)
    attr, values = g.leaf("edge features", number_of_edges(m), 3)
    return BiasCase(module(values), tied=[lambda x: x[name] @ x[attr].T])


def edge_types(g: Grid, m: MaskCase) -> BiasCase:
    module = EdgeTypes(4, g.heads)
    name = learn(g, module)
    types = g.integers(4, number_of_edges(m))
    return BiasCase(module(types), tied=[lambda x: x[name][types].T])


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
    "t5": lambda g, m: t5(g, 32, 128, both=True),
    "t5 causal + rope llama3": lambda g, m: t5(g, 8, 20, both=False) + rope_llama3(g),
    "relative + rope yarn": lambda g, m: relative(g) + rope_yarn(g),
    "rope part linear": lambda g, m: rope_linear(g),
    "rope dynamic": lambda g, m: rope_dynamic(g),
    "node types + rope ntk": lambda g, m: node_types(g) + rope_ntk(g),
    "shortest path": lambda g, m: shortest_path(g),
    "shortest path blocks": lambda g, m: path_blocks(g),
    "path features": lambda g, m: path_features(g),
    "log prior": lambda g, m: log_prior(g),
    "edge features + edge types": lambda g, m: edge_features(g, m) + edge_types(g, m),
    "edge prior [E,H]": edge_prior,
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
