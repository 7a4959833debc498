"""Random graphs of known shape, each from a seed."""

from __future__ import annotations

import torch
from torch import Tensor


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
        ValueError: If a number is negative, or there are edges without nodes.

    Example:
        >>> power_law(5, 3, seed=1).shape
        torch.Size([2, 3])
    """
    if num_nodes < 0 or num_edges < 0 or (num_edges and not num_nodes):
        raise ValueError(f"num_nodes is {num_nodes} and num_edges {num_edges}; edges need at least one node")
    generator = torch.Generator().manual_seed(seed)
    chance = (torch.arange(num_nodes, dtype=torch.float64) + 10.0) ** -exponent
    bounds = chance.cumsum(0)
    ends = []
    for _ in range(2):
        draw = torch.rand(num_edges, dtype=torch.float64, generator=generator) * bounds[-1:]
        rank = torch.searchsorted(bounds, draw).clamp_max(max(num_nodes - 1, 0))
        ends.append(torch.randperm(num_nodes, generator=generator)[rank])
    return torch.stack(ends)
