"""Random graphs of known shape, each from a seed."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from graphs.checks import check_counts
from graphs.hetero import Relation, check_types
from unified_attn.pairs import check_number


def power_law(num_nodes: int, num_edges: int, *, exponent: float = 0.75, seed: int = 0) -> Tensor:
    """A directed graph with few nodes of many edges and many of few, as citation graphs are.

    Both ends of each edge are drawn independently, node r of a random order with probability proportional to
    ``(r + 10) ** -exponent``; parallel edges and loops may occur, and some nodes have no edge.

    Args:
        num_nodes: N, at least 1 if there are edges.
        num_edges: E.
        exponent: 0 is uniform; greater is more uneven.
        seed: Of the generator; the same seed gives the same graph.

    Returns:
        Edge index ``[2, E]`` int64, sources then targets, in random order.

    Raises:
        ValueError: If a count is negative, there are edges without nodes, or ``exponent`` is not finite.

    Example:
        >>> power_law(5, 3, seed=1).shape
        torch.Size([2, 3])
    """
    check_counts(num_nodes=num_nodes, num_edges=num_edges)
    if num_edges and not num_nodes:
        raise ValueError(f"num_nodes is 0 and num_edges {num_edges}; edges need at least one node")
    check_number("exponent", exponent, "give a number")
    if not math.isfinite(exponent):
        raise ValueError(f"exponent is {exponent}; give a finite number")
    generator = torch.Generator().manual_seed(seed)
    chance = (torch.arange(num_nodes, dtype=torch.float64) + 10.0) ** -exponent
    bounds = chance.cumsum(0)
    ends = []
    for _ in range(2):
        draw = torch.rand(num_edges, dtype=torch.float64, generator=generator) * bounds[-1:]
        rank = torch.searchsorted(bounds, draw).clamp_max(max(num_nodes - 1, 0))
        ends.append(torch.randperm(num_nodes, generator=generator)[rank])
    return torch.stack(ends)


def random_bipartite(num_keys: int, num_queries: int, num_edges: int, *, seed: int = 0) -> Tensor:
    """Edges between two node sets, each numbered from 0: a uniformly random set of pairs, none twice.

    Returns:
        Edge index ``[2, E]`` int64, in random order.

    Raises:
        ValueError: If a number is negative, or there are fewer pairs than edges.

    Example:
        >>> random_bipartite(2, 3, 6).unique(dim=1).tolist()
        [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    """
    check_counts(num_keys=num_keys, num_queries=num_queries, num_edges=num_edges)
    if num_edges > num_keys * num_queries:
        raise ValueError(f"num_edges is {num_edges}; {num_keys} keys and {num_queries} queries have fewer pairs")
    chosen = random.Random(seed).sample(range(num_keys * num_queries), num_edges)  # never lists the pairs
    pair = torch.tensor(chosen, dtype=torch.int64)
    return torch.stack([pair // max(num_queries, 1), pair % max(num_queries, 1)])


def random_typed(num_nodes: dict[str, int], num_edges: dict[Relation, int], *, seed: int = 0) -> dict[Relation, Tensor]:
    """Edges between nodes of several types: for each relation a uniformly random set of pairs, none twice.

    Args:
        num_nodes: By type.
        num_edges: By relation: type of the sources, name, type of the targets.
        seed: The same seed gives the same graph; a relation's edges depend on its place among the relations.

    Returns:
        Edge index ``[2, E]`` int64 by relation, nodes numbered within their type.

    Raises:
        ValueError: If a relation names a type that there is not, or has fewer pairs than edges.

    Example:
        >>> edges = random_typed({"author": 3, "paper": 5}, {("author", "wrote", "paper"): 4})
        >>> edges["author", "wrote", "paper"].shape
        torch.Size([2, 4])
    """
    draw = random.Random(seed)
    edges = {}
    for (source, name, target), count in num_edges.items():
        check_types(num_nodes, source, target)
        edges[source, name, target] = random_bipartite(
            num_nodes[source], num_nodes[target], count, seed=draw.getrandbits(32)
        )
    return edges
