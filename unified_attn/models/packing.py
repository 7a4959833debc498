"""Several graphs as one: arguments of a graph network, side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unified_attn.masks import Graph
from unified_attn.operator import kind_of
from unified_attn.pairs import check_count, check_integers, describe
from unified_attn.rows import edge_ends

ROWS = {"x": "nodes", "edge_attr": "edges", "edge_types": "edges", "laplacian": "nodes", "walks": "nodes"}
"""Tensors with a row each of these."""

NAMES = (*ROWS, "edge_index", "distance", "paths")


def pack_graphs(graphs: Sequence[Mapping[str, Tensor | Graph]]) -> dict[str, Any]:
    """Graphs packed into one without edges between them, as arguments of a :class:`~unified_attn.models.GraphNet`.

    Nodes are numbered on from graph to graph, and so are edges. The lengths and paths of a graph stay its own blocks,
    one after the other: nothing of size N x N is formed for all of them together.

    Args:
        graphs: Of each graph its tensors by the names of the network's arguments: ``x``, ``edge_index`` (a tensor or a
            :class:`~unified_attn.Graph`), and what else the network reads, such as ``distance [n, n]`` and
            ``paths [n, n, L]``.

    Returns:
        The same names, with ``batch [N]`` and ``num_graphs``; ``distance [sum of n * n]``, ``paths [sum of n * n, L]``.

    Raises:
        TypeError: If ``graphs`` is no sequence of mappings, or something in one is no tensor.
        ValueError: If there is no graph, names are unknown or differ, an edge leaves its graph, or rows or a block do
            not fit their graph.

    Example:
        >>> one = {"x": torch.zeros(2, 1), "edge_index": torch.tensor([[0], [1]]), "distance": torch.zeros(2, 2).long()}
        >>> packed = pack_graphs([one, one])
        >>> packed["edge_index"], packed["batch"], packed["distance"].shape
        (tensor([[0, 2],
                [1, 3]]), tensor([0, 0, 1, 1]), torch.Size([8]))
    """
    if not isinstance(graphs, Sequence) or not all(isinstance(graph, Mapping) for graph in graphs):
        raise TypeError(f"graphs is {kind_of(graphs)}; give a list with a dict of tensors a graph")
    if not graphs:
        raise ValueError("graphs is empty; give at least one")
    names = set(graphs[0])
    if unknown := names - set(NAMES):
        raise ValueError(f"graphs hold {sorted(unknown)}; known are {NAMES}")
    if missing := {"x", "edge_index"} - names:
        raise ValueError(f"graphs lack {sorted(missing)}")
    for n, graph in enumerate(graphs):
        if set(graph) != names:
            raise ValueError(f"graph {n} holds {sorted(graph)}, but graph 0 {sorted(names)}; all must hold the same")
    tensors = [_checked(graph, n) for n, graph in enumerate(graphs)]
    nodes = [graph["x"].shape[0] for graph in tensors]
    edges = [graph["edge_index"].shape[1] for graph in tensors]
    first_node, first_edge = ([0, *itertools.accumulate(counts)] for counts in (nodes, edges))
    device = tensors[0]["x"].device
    packed: dict[str, Any] = {name: torch.cat([graph[name] for graph in tensors]) for name in ROWS if name in names}
    ends = [graph["edge_index"] + first for graph, first in zip(tensors, first_node, strict=False)]
    packed["edge_index"] = torch.cat(ends, dim=1)
    if "distance" in names:
        packed["distance"] = torch.cat([graph["distance"].flatten() for graph in tensors])
    if "paths" in names:
        longest = max(graph["paths"].shape[2] for graph in tensors)
        blocks = [_block(graph["paths"], first, longest) for graph, first in zip(tensors, first_edge, strict=False)]
        packed["paths"] = torch.cat(blocks)
    packed["batch"] = torch.arange(len(tensors), device=device).repeat_interleave(torch.tensor(nodes, device=device))
    packed["num_graphs"] = len(tensors)
    return packed


def _checked(graph: Mapping[str, Tensor | Graph], n: int) -> dict[str, Tensor]:
    """The tensors of graph n, each known to fit it: packed, an edge or a row too many would be its neighbour's."""
    tensors: dict[str, Tensor] = {}
    for name, value in graph.items():
        tensor = value.edge_index if name == "edge_index" and isinstance(value, Graph) else value
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} of graph {n} is {kind_of(tensor)}; give a tensor")
        if tensor.dim() == 0:
            raise ValueError(f"{name} of graph {n} is {describe(tensor)}; it must have rows")
        tensors[name] = tensor
    size = tensors["x"].shape[0]
    try:
        ends = Graph(tensors["edge_index"]).edge_index  # its form is right
        edge_ends(ends, size, size)
    except (TypeError, ValueError) as error:
        raise type(error)(f"graph {n}: {error}") from error
    counts = {"nodes": size, "edges": ends.shape[1]}
    for name, tensor in tensors.items():
        if name in ROWS and tensor.shape[0] != counts[ROWS[name]]:
            raise ValueError(
                f"graph {n} has {counts[ROWS[name]]} {ROWS[name]}, but {name} is {describe(tensor)}: a row each"
            )
        if name in ("distance", "paths") and tensor.shape[:2] != (size, size):
            raise ValueError(f"graph {n} has {size} nodes, but {name} is {describe(tensor)}: [n, n] first")
    return tensors


def _block(paths: Tensor, first: int, longest: int) -> Tensor:
    """Paths ``[n, n, L]`` of a graph whose edges begin at ``first``, as ``[n * n, longest]``."""
    shifted = torch.where(paths >= 0, paths + first, paths).flatten(0, 1)
    return torch.nn.functional.pad(shifted, (0, longest - paths.shape[2]), value=-1)


def sizes_of(batch: Tensor | None, num_graphs: int | None, x: Tensor) -> Tensor:
    """Nodes of each graph, ``[G]``, of a batch vector that has been checked; one graph without it.

    Raises:
        TypeError: If ``batch`` holds no integers.
        ValueError: If it is not ``[N]``, falls, or holds something outside of 0..G-1.
    """
    if num_graphs is not None:
        check_count("num_graphs", num_graphs, "give the number of graphs")
    if batch is None:
        if num_graphs not in (None, 1):
            raise ValueError(f"num_graphs is {num_graphs}, but batch is missing: give the graph of each node, [N]")
        return torch.full((1,), x.shape[0], device=x.device)
    check_integers("batch", batch, "give the graph of each node, [N]")
    if batch.shape != x.shape[:1] or batch.device != x.device:
        raise ValueError(f"batch is {describe(batch)} on {batch.device}, but x has {x.shape[0]} rows on {x.device}")
    if num_graphs is None:
        num_graphs = int(batch.max()) + 1 if batch.numel() else 0
    sizes: Tensor = graph_sizes(batch, num_graphs)
    return sizes


@torch.library.custom_op("unified_attn::graph_sizes", mutates_args=())
def graph_sizes(batch: Tensor, num_graphs: int) -> Tensor:
    """Nodes of each graph, ``[G]``, once the graphs are known to follow one another."""
    ids = batch.long()
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= num_graphs:
            raise ValueError(f"batch holds {low if low < 0 else high}, but there are {num_graphs} graphs")
        falls = (ids.diff() < 0).nonzero()
        if falls.numel():
            at = int(falls[0])
            raise ValueError(
                f"batch falls from {int(ids[at])} to {int(ids[at + 1])}: a graph's nodes must be neighbours"
            )
    return torch.bincount(ids, minlength=num_graphs)


@graph_sizes.register_fake
def _(batch: Tensor, num_graphs: int) -> Tensor:
    return batch.new_empty(num_graphs, dtype=torch.int64)
