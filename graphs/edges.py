"""Edge lists made alike: each edge once, no loops, both directions."""

from __future__ import annotations

import torch
from torch import Tensor

from graphs.checks import checked_edges


def unique_edges(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Each edge once, ordered by target, then source.

    Args:
        edge_index: ``[2, E]`` integers, sources then targets.
        num_nodes: N.

    Returns:
        ``[2, E]`` int64.

    Raises:
        ValueError: If an index is out of range.

    Example:
        >>> unique_edges(torch.tensor([[2, 0, 2], [1, 1, 1]]), 3)
        tensor([[0, 2],
                [1, 1]])
    """
    edge_index = checked_edges(edge_index, num_nodes)  # one out of range would become another edge
    codes = torch.unique(edge_index[1] * num_nodes + edge_index[0])
    return torch.stack([codes % num_nodes, codes // num_nodes]) if num_nodes else edge_index


def without_loops(edge_index: Tensor) -> Tensor:
    """The edges whose ends differ, in their order."""
    return edge_index[:, edge_index[0] != edge_index[1]]


def both_directions(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Every edge and its reverse, each once, ordered by target, then source.

    Example:
        >>> both_directions(torch.tensor([[0, 2], [1, 2]]), 3)
        tensor([[1, 0, 2],
                [0, 1, 2]])
    """
    return unique_edges(torch.cat([edge_index, edge_index.flip(0)], dim=1), num_nodes)
