"""Graphs of raw edge lists, kept by content.

A layer that gets the same ``edge_index`` at every step would check and sort it at every step. Here the last few graphs
are kept and found again by comparing every number: neither an address nor a version counter says that a tensor is
unchanged (numpy and ``.data`` write past both), so a comparison is the only key that is never stale. On CPU it costs a
few percent of the sort. Compiled code makes its graph inside, and on other devices, where comparing would wait for the
device, it is made anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unified_attn.masks import Graph, Mask
from unified_attn.nn.self_loops import looped_nodes, with_loops

KEPT_GRAPHS = 16
"""Enough for the relations of a heterogeneous graph, which take turns."""


@dataclass(frozen=True, eq=False)
class Edges:
    """What a graph layer attends over.

    Args:
        mask: The graph, perhaps with edges hidden.
        edge_index: ``[2, E + M]``: the caller's edges in their order, then the loops that were added.
        loops: ``[M]``: the nodes that got a loop; None if none was asked for.
    """

    mask: Mask
    edge_index: Tensor
    loops: Tensor | None


@dataclass(frozen=True, eq=False)
class _Kept:
    edge_index: Tensor  # the caller's edges as they were, [2, E]
    sizes: tuple[int, int, bool]
    edges: Edges

    def holds(self, edge_index: Tensor, sizes: tuple[int, int, bool]) -> bool:
        mine = self.edge_index
        return (
            self.sizes == sizes
            and mine.shape == edge_index.shape
            and mine.dtype == edge_index.dtype
            and torch.equal(mine, edge_index)
        )


_kept: tuple[_Kept, ...] = ()  # newest first; replaced as a whole, so that threads may lose an entry but read no half


def edges_of(edge_index: Tensor, num_keys: int, num_queries: int, *, loops: bool) -> Edges:
    """The graph of a raw edge list, perhaps with the self-loops that it lacks.

    Args:
        edge_index: ``[2, E]`` integers, sources then targets.
        num_keys: Number of sources.
        num_queries: Number of targets.
        loops: Whether to add a loop to each target that has none (then the targets are the first of the sources).

    Returns:
        :class:`Edges`. In compiled code, where sizes must not depend on data, every node gets a loop and the graph
        hides those that were there already.
    """
    global _kept
    if torch.compiler.is_compiling() or edge_index.device.type != "cpu":
        return _made(edge_index, num_keys, num_queries, loops)
    sizes = (num_keys, num_queries, loops)
    before = _kept
    found = next((kept for kept in before if kept.holds(edge_index, sizes)), None)
    if found is None:
        with torch.inference_mode(False):  # what is kept may take part in training later
            edges = _made(edge_index, num_keys, num_queries, loops)
            own = edges.edge_index[:, : edge_index.shape[1]]
            found = _Kept(own if own.dtype == edge_index.dtype else edge_index.clone(), sizes, edges)
    _kept = (found, *(kept for kept in before if kept is not found))[:KEPT_GRAPHS]
    return found.edges


def _made(edge_index: Tensor, num_keys: int, num_queries: int, loops: bool) -> Edges:
    compiling = torch.compiler.is_compiling()
    nodes: Tensor | None = None
    hidden: Tensor | None = None
    if loops:
        Graph(edge_index)  # whatever is wrong with the list is said before its numbers are read
        looped = looped_nodes(edge_index, num_keys, num_queries)
        nodes = torch.arange(num_queries, device=edge_index.device)
        if compiling:
            hidden = torch.cat([looped.new_zeros(edge_index.shape[1]), looped])
        else:
            nodes = nodes[~looped]
        edge_index = with_loops(edge_index, nodes)
    # Compiled, the list is made once q and k say the same sizes.
    graph = Graph(edge_index) if compiling else Graph(edge_index, num_keys=num_keys, num_queries=num_queries)
    return Edges(graph if hidden is None else graph.keep(~hidden), graph.edge_index, nodes)


def clear() -> None:
    """Forgets all graphs."""
    global _kept
    _kept = ()
