"""Eigenvectors of the graph Laplacian: positions in a graph, as sines are positions in a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphs.checks import check_counts, checked_edges
from graphs.edges import both_directions, without_loops

if TYPE_CHECKING:
    import scipy.sparse

DENSE = 256  # nodes up to which all eigenvectors at once are quicker


def laplacian_eigenvectors(edge_index: Tensor, num_nodes: int, num_vectors: int) -> Tensor:
    """The first eigenvectors after the trivial one, of each connected component by itself.

        L = I - D^-1/2 A D^-1/2

    Edges count once and in both directions, loops not at all. Columns are ordered by eigenvalue, each of norm 1 within
    a component, with the sign that makes the entry of greatest magnitude positive (the first of equal ones). Of n nodes
    a component has n - 1 such vectors; further columns are 0. So a packed graph gives what its graphs give one by one.
    Where eigenvalues coincide, as in rings, vectors are any basis of their space, the same in every run.

    Args:
        edge_index: ``[2, E]`` integers.
        num_nodes: N.
        num_vectors: K.

    Returns:
        ``[N, K]`` float32.

    Raises:
        ValueError: If an index is out of range or ``num_vectors`` is negative.

    Reference: Dwivedi and Bresson, 2021, section 2.1, arXiv:2012.09699; there a disconnected graph is taken as a whole.

    Example:
        >>> laplacian_eigenvectors(torch.tensor([[0], [1]]), 2, 2)
        tensor([[ 0.7071,  0.0000],
                [-0.7071,  0.0000]])
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edge_index = checked_edges(edge_index, num_nodes)
    check_counts(num_vectors=num_vectors)
    vectors = np.zeros((num_nodes, num_vectors), dtype=np.float32)
    if num_nodes and num_vectors:
        ends = both_directions(without_loops(edge_index), num_nodes).numpy()
        adjacency = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(num_nodes, num_nodes)).tocsr()
        _, component = connected_components(adjacency, directed=False)
        members = np.argsort(component, kind="stable")
        for nodes in np.split(members, np.cumsum(np.bincount(component))[:-1]):
            if len(nodes) > 1:
                found = _of_component(adjacency[nodes][:, nodes], num_vectors)
                vectors[nodes, : found.shape[1]] = found
    return torch.from_numpy(vectors)


def flip_signs(vectors: Tensor, *, batch: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
    """Each column times +1 or -1 at random, for training: eigenvectors have no sign of their own.

    Args:
        vectors: ``[N, K]``.
        batch: Graph of each node in a packed one, ``[N]`` int64: each graph gets signs of its own.
        generator: Default torch's.

    Reference: Dwivedi and Bresson, 2021, section 2.1, arXiv:2012.09699.
    """
    graph = torch.zeros(len(vectors), dtype=torch.int64) if batch is None else batch
    num_graphs = int(graph.max()) + 1 if len(graph) else 0
    signs = 2 * torch.randint(2, (num_graphs, vectors.shape[1]), generator=generator) - 1
    return vectors * signs[graph].to(vectors.dtype)


def _of_component(adjacency: scipy.sparse.csr_array, num_vectors: int) -> np.ndarray:
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import eigsh

    size = adjacency.shape[0]
    shrink = diags_array(adjacency.sum(1) ** -0.5)
    normalised = shrink @ adjacency @ shrink  # has the same vectors; eigenvalues 1 - those of L
    if size <= max(DENSE, 2 * num_vectors):
        vectors = np.linalg.eigh(normalised.toarray())[1]
    else:
        start = np.random.RandomState(0).standard_normal(size)  # the solver's own differs from run to run
        values, vectors = eigsh(normalised, k=num_vectors + 1, which="LA", v0=start)
        vectors = vectors[:, np.argsort(values)]
    vectors = vectors[:, ::-1][:, 1 : num_vectors + 1]
    magnitude = np.abs(vectors)
    largest = np.argmax(magnitude > magnitude.max(0) * (1 - 1e-6), axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.asarray(vectors * signs)
