"""Our graph layers against torch-geometric's, projections included."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from experiments.benchmarks.case import Case, Function, Side, Size
from experiments.layers import LAYERS, layer
from graphs.edges import without_loops
from graphs.generators import power_law
from unified_attn import Graph
from unified_attn.interop.pyg import convert
from unified_attn.nn import graph_cache

EAGER, COMPILED = "torch-geometric", "torch-geometric, torch.compile"
WORDS = 0.0127  # the share of Cora's features that are not 0


def layer_cases(
    size: Size, inputs: int, *, compiled: bool = False, edge_dim: int | None = None, words: bool = False
) -> Iterator[Case]:
    """Each layer with a graph that is made beforehand; GATv2Conv with new edges at every call, too.

    Args:
        size: Of graph and heads.
        inputs: Size of a node's features.
        compiled: Whether a compiled torch-geometric is a peer too.
        edge_dim: Size of an edge's features, which GATv2Conv and TransformerConv have then.
        words: Features are bags of words, as full as those of Cora: data, of which no gradient is taken.
    """
    edges = without_loops(power_law(size.nodes, size.edges, seed=0))  # a caller's own loops are treated apart
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size.nodes, inputs, generator=generator)
    if words:
        x = (torch.rand(x.shape, generator=generator) < WORDS).float()
    edge_attr = () if edge_dim is None else (torch.randn(edges.shape[1], edge_dim),)
    fixed, given = ((x,), edge_attr) if words else ((), (x, *edge_attr))
    graph = Graph(edges, num_keys=size.nodes)
    features = " (words)" if words else "" if edge_dim is None else f", {edge_dim} edge features"
    for kind, name in LAYERS.items():
        if edge_dim is not None and kind == "gat":
            continue
        torch.manual_seed(0)
        theirs = layer("torch_geometric", kind, inputs, size.channels, size.heads, edge_dim=edge_dim)
        ours, exact = convert(copy.deepcopy(theirs)), copy.deepcopy(theirs).double()
        right = side(exact, edges, *(t.double() for t in fixed))
        name = f"{name}, {inputs:,} inputs{features}"
        peer = side(theirs, edges, *fixed)
        yield Case(f"{name}, {size}", EAGER, given, side(ours, graph, *fixed), peer, right)
        if kind == "gatv2" and edge_dim is None:
            new = Side(forgetting(side(ours, edges, *fixed).function), tuple(ours.parameters()))
            yield Case(f"{name}, new edges at every call, {size}", EAGER, given, new, peer, right)
        if compiled:
            fast = Side(side(torch.compile(theirs), edges, *fixed).function, peer.weights)
            yield Case(f"{name}, {size}", COMPILED, given, side(ours, graph, *fixed), fast, right)


def side(made: nn.Module, edges: Tensor | Graph, *fixed: Tensor) -> Side:
    """A layer over given edges; ``fixed`` come before the inputs of the case."""

    def run(*inputs: Tensor) -> Tensor:
        x, *edge_attr = (*fixed, *inputs)
        out: Tensor = made(x, edges, *edge_attr)
        return out

    return Side(run, tuple(made.parameters()))


def forgetting(run: Function) -> Function:
    """As if these edges had never been seen."""

    def afresh(*inputs: Tensor) -> Tensor:
        graph_cache.clear()
        return run(*inputs)

    return afresh
