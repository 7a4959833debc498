"""What a node's place in its graph adds to its features: degrees and random walks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphs.checks import check_counts, checked_edges


def degrees(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Edges that come in to each node and that go out of it, ``[N]`` int64 each; parallel edges and loops count.

    Raises:
        ValueError: If an index is out of range.

    Example:
        >>> degrees(torch.tensor([[0, 0], [1, 2]]), 3)
        (tensor([0, 1, 1]), tensor([2, 0, 0]))
    """
    edge_index = checked_edges(edge_index, num_nodes)
    outgoing, incoming = (torch.bincount(ends, minlength=num_nodes) for ends in edge_index)
    return incoming, outgoing


def random_walk_returns(edge_index: Tensor, num_nodes: int, num_steps: int) -> Tensor:
    """Chance that a walk from a node, taking a random outgoing edge each step, is back after 1, 2, ... steps.

        returns[i, t - 1] = (P^t)_ii,  P_ij = (edges i -> j) / (edges out of i)

    A walk ends at a node without outgoing edges.

    Args:
        edge_index: ``[2, E]`` integers.
        num_nodes: N.
        num_steps: T.

    Returns:
        ``[N, T]`` float32.

    Raises:
        ValueError: If an index is out of range or ``num_steps`` is negative.

    Cost: T products of sparse matrices, which fill up to N^2 entries where the graph is connected.
    Reference: Dwivedi et al., 2022, section 3.2, arXiv:2110.07875.

    Example:
        >>> random_walk_returns(torch.tensor([[0, 1], [1, 0]]), 2, 2)
        tensor([[0., 1.],
                [0., 1.]])
    """
    from scipy.sparse import coo_array

    check_counts(num_steps=num_steps)
    _, outgoing = degrees(edge_index, num_nodes)
    returns = np.zeros((num_nodes, num_steps), dtype=np.float32)
    if num_nodes:
        source, target = edge_index.numpy()
        step = coo_array((1.0 / outgoing.numpy()[source], (source, target)), shape=(num_nodes, num_nodes)).tocsr()
        walk = step
        for t in range(num_steps):
            returns[:, t] = walk.diagonal()
            walk = walk @ step if t + 1 < num_steps else walk
    return torch.from_numpy(returns)
