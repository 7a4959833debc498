"""Shortest paths between all nodes of a graph, for biases that see how far two nodes lie apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphs.checks import check_counts, checked_edges
from graphs.packed import GraphSet


def shortest_paths(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Number of edges of the shortest path from node j to node i, along the edges; -1 where there is none.

    Rows are queries and columns keys, as in the bias b_ij: an edge j -> i makes ``distance[i, j]`` 1. Of a graph whose
    edges go both ways the matrix is symmetric. Nodes of different graphs in a packed one have no path.

    Args:
        edge_index: ``[2, E]`` integers, sources then targets.
        num_nodes: N.

    Returns:
        ``[N, N]`` int64, 0 on the diagonal.

    Raises:
        ValueError: If an index is out of range.

    Cost: O(N E log N) time, O(N^2) memory.

    Example:
        >>> shortest_paths(torch.tensor([[0, 1], [1, 2]]), 3)
        tensor([[ 0, -1, -1],
                [ 1,  0, -1],
                [ 2,  1,  0]])
    """
    return _search(checked_edges(edge_index, num_nodes), num_nodes)[0]


def distance_blocks(graphs: GraphSet) -> list[Tensor]:
    """Distances of each graph by itself, ``[n, n]``: a list of those in a batch is what biases take for packed graphs.

    Example:
        >>> from graphs.ranges import pointers
        >>> counts = torch.tensor([2, 1])
        >>> edge_index, edge_ptr = torch.tensor([[0], [1]]), torch.tensor([0, 1, 1])
        >>> two = GraphSet("two", torch.zeros(3, 1), edge_index, pointers(counts), edge_ptr, y=torch.zeros(2))
        >>> [block.tolist() for block in distance_blocks(two)]
        [[[0, -1], [1, 0]], [[0]]]
    """
    nodes, edges = graphs.node_ptr.diff().tolist(), graphs.edge_ptr.diff().tolist()
    return [
        shortest_paths(ends, count) for ends, count in zip(graphs.edge_index.split(edges, dim=1), nodes, strict=True)
    ]


def path_edges(edge_index: Tensor, num_nodes: int, max_length: int | None = None) -> tuple[Tensor, Tensor]:
    """Distances as :func:`shortest_paths` gives them, and the edges of one shortest path for each pair.

    ``edges[i, j]`` holds the edges of the path between i and j, the one at i first, the one at j last, filled up with
    -1: what :class:`~unified_attn.PathFeatures` takes. Along its edges the path runs from j to i, so the first of them
    enters i. With several shortest paths the choice depends on the graph alone; of parallel edges it is the first.

    Args:
        edge_index: ``[2, E]`` integers.
        num_nodes: N.
        max_length: Keeps at most so many edges of each path, those nearest i; default all.

    Returns:
        ``distance [N, N]`` and ``edges [N, N, L]``, int64; entries past a path's end are -1. L is the greatest
        distance, or ``max_length`` where that is less.

    Raises:
        ValueError: If an index is out of range or ``max_length`` is negative.

    Reference: Ying et al., 2021, Eq. 7, arXiv:2106.05234 (there from i; the same where edges go both ways).

    Example:
        >>> distance, edges = path_edges(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> edges[2, 0].tolist(), edges[1, 0].tolist()
        ([1, 0], [0, -1])
    """
    if max_length is not None:
        check_counts(max_length=max_length)
    edge_index = checked_edges(edge_index, num_nodes)
    distance, before = _search(edge_index, num_nodes)
    longest = int(distance.max()) if num_nodes else 0
    if max_length is not None:
        longest = min(longest, max_length)
    first = torch.full((num_nodes, num_nodes), edge_index.shape[1], dtype=torch.int64)  # edge from one node to another
    flat = edge_index[0] * num_nodes + edge_index[1]
    first.view(-1).scatter_reduce_(0, flat, torch.arange(len(flat)), "amin")

    key = torch.arange(num_nodes).expand(num_nodes, num_nodes)
    here = key.t()
    edges = torch.full((num_nodes, num_nodes, longest), -1)
    for step in range(longest):
        on_path = step < distance
        previous = torch.where(on_path, before[here, key], here)
        edges[..., step] = torch.where(on_path, first[previous, here], -1)
        here = previous
    return distance, edges


def _search(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Distances, and the node before i on the path from j to i (negative if none), both ``[i, j]``."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    if not num_nodes:
        return (torch.empty(0, 0, dtype=torch.int64),) * 2
    source, target = edge_index.numpy()
    edges = coo_array((np.ones(len(source)), (source, target)), shape=(num_nodes, num_nodes)).tocsr()
    length, before = shortest_path(edges, method="D", unweighted=True, return_predecessors=True)
    length[np.isinf(length)] = -1
    return torch.from_numpy(length.T.astype(np.int64)), torch.from_numpy(before.T.astype(np.int64))
