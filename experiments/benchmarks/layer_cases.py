"""Our graph layers against torch-geometric's, projections included."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from experiments.benchmarks.case import Case, Side, Size
from experiments.layers import LAYERS, layer
from graphs.edges import without_loops
from graphs.generators import power_law
from unified_attn import Graph
from unified_attn.interop.pyg import convert
from unified_attn.nn import graph_cache

EAGER, COMPILED = "torch-geometric", "torch-geometric, torch.compile"


def layer_cases(size: Size, inputs: int, *, compiled: bool = False, edge_dim: int | None = None) -> Iterator[Case]:
    """Each layer with a graph that is made beforehand; then GATv2Conv with new edges at every call.

    Args:
        size: Of graph and heads.
        inputs: Size of a node's features.
        compiled: Whether the peer is compiled.
        edge_dim: Size of an edge's features, which GATv2Conv and TransformerConv have then.
    """
    edges = without_loops(power_law(size.nodes, size.edges, seed=0))  # a caller's own loops are treated apart
    x = torch.randn(size.nodes, inputs, generator=torch.Generator().manual_seed(0))
    edge_attr = () if edge_dim is None else (torch.randn(edges.shape[1], edge_dim),)
    graph = Graph(edges, num_keys=size.nodes)
    features = "" if edge_dim is None else f", {edge_dim} edge features"
    for kind, name in LAYERS.items():
        if edge_dim is not None and kind == "gat":
            continue
        torch.manual_seed(0)
        theirs = layer("torch_geometric", kind, inputs, size.channels, size.heads, edge_dim=edge_dim)
        ours, exact = convert(copy.deepcopy(theirs)), copy.deepcopy(theirs).double()
        peer = torch.compile(theirs) if compiled else theirs
        yield Case(
            f"{name}, {inputs:,} inputs{features}, {size}",
            COMPILED if compiled else EAGER,
            (x, *edge_attr),
            side(ours, graph),
            Side(side(peer, edges).function, tuple(theirs.parameters())),
            side(exact, edges),
        )
        if kind == "gatv2" and not compiled and edge_dim is None:
            yield Case(
                f"{name}, {inputs:,} inputs, new edges at every call, {size}",
                EAGER,
                (x,),
                Side(lambda x, made=ours: afresh(made, x, edges), tuple(ours.parameters())),
                side(theirs, edges),
                side(exact, edges),
            )


def side(made: nn.Module, edges: Tensor | Graph) -> Side:
    """A layer over given edges."""
    return Side(lambda x, *edge_attr: made(x, edges, *edge_attr), tuple(made.parameters()))


def afresh(made: nn.Module, x: Tensor, edges: Tensor) -> Tensor:
    """As if these edges had never been seen."""
    graph_cache.clear()
    out: Tensor = made(x, edges)
    return out
