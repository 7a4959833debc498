"""Graphs of fixed shape."""

from __future__ import annotations

import torch
from torch import Tensor

from graphs.checks import check_counts
from graphs.edges import both_directions, without_loops


def ring(num_nodes: int) -> Tensor:
    """A cycle, both directions: node i and node i + 1, the last and the first. One node has no edge, two have one pair.

    Returns:
        Edge index ``[2, 2N]`` int64, ordered by target, then source.

    Raises:
        ValueError: If the number is negative.

    Example:
        >>> ring(4).tolist()
        [[1, 3, 0, 2, 1, 3, 0, 2], [0, 0, 1, 1, 2, 2, 3, 3]]
    """
    check_counts(num_nodes=num_nodes)
    here = torch.arange(num_nodes)
    return both_directions(without_loops(torch.stack([here, here.roll(-1)])), num_nodes)


def grid(rows: int, columns: int) -> Tensor:
    """A rectangle of nodes, row after row, each joined to the next in its row and in its column, both directions.

    Returns:
        Edge index ``[2, 2 (rows (columns - 1) + columns (rows - 1))]`` int64, ordered by target, then source.

    Raises:
        ValueError: If a number is negative.

    Example:
        >>> grid(2, 2).tolist()
        [[1, 2, 0, 3, 0, 3, 1, 2], [0, 0, 1, 1, 2, 2, 3, 3]]
    """
    check_counts(rows=rows, columns=columns)
    node = torch.arange(rows * columns).reshape(rows, columns)
    along = torch.stack([node[:, :-1].flatten(), node[:, 1:].flatten()])
    down = torch.stack([node[:-1].flatten(), node[1:].flatten()])
    return both_directions(torch.cat([along, down], dim=1), rows * columns)


def complete_bipartite(num_keys: int, num_queries: int) -> Tensor:
    """Every key to every query, each side numbered from 0: attention without a mask, as a graph.

    Returns:
        Edge index ``[2, Nk Nq]`` int64, ordered by source, then target.

    Raises:
        ValueError: If a number is negative.

    Example:
        >>> complete_bipartite(2, 3).tolist()
        [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    """
    check_counts(num_keys=num_keys, num_queries=num_queries)
    pair = torch.arange(num_keys * num_queries)
    return torch.stack([pair // max(num_queries, 1), pair % max(num_queries, 1)])
