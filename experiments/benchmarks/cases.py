"""The registry: each case builds its inputs once, and computes one formula by the library and by a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.benchmarks import peers
from graphs.generators import power_law
from unified_attn import GAT, EdgeBias, GATv2, Graph, graph_attention

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """One formula on one input.

    Args:
        name: Row of the table.
        peer: What ours is compared with.
        inputs: Tensors that both functions take and are differentiated by.
        ours: The library's computation.
        theirs: The peer's.
    """

    name: str
    peer: str
    inputs: tuple[Tensor, ...]
    ours: Function
    theirs: Function


@dataclass(frozen=True)
class Size:
    """Nodes, edges, heads and channels of a graph case."""

    nodes: int
    edges: int
    heads: int
    channels: int

    def __str__(self) -> str:
        return f"N={self.nodes:,} E={self.edges:,} H={self.heads} C={self.channels}"


ARXIV = Size(169_343, 1_166_243, 4, 32)
SMALL = Size(20_000, 140_000, 4, 32)


def operator_cases(size: Size, seed: int = 0) -> list[Case]:
    """The fused operator against the gather-softmax-scatter formula; the graph is sorted beforehand for both."""
    edge_index = power_law(size.nodes, size.edges, seed=seed)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]  # by target: what serves the peer best
    graph = Graph(edge_index, num_keys=size.nodes)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, y, z = (normal(size.nodes, size.heads, size.channels) for _ in range(3))
    a, b = (normal(size.heads, size.channels) * size.channels**-0.5 for _ in range(2))
    e = normal(size.edges, size.heads)
    formula = "gather, softmax, scatter in torch"
    return [
        Case(
            f"dot, {size}",
            formula,
            (x, y, z),
            lambda q, k, v: graph_attention(q, k, v, graph, backend="csr"),
            lambda q, k, v: peers.dot(q, k, v, edge_index),
        ),
        Case(
            f"dot + EdgeBias, {size}",
            formula,
            (x, y, z, e),
            lambda q, k, v, bias: graph_attention(q, k, v, graph, bias=EdgeBias(bias), backend="csr"),
            lambda q, k, v, bias: peers.dot(q, k, v, edge_index, bias),
        ),
        Case(
            f"GATv2, {size}",
            formula,
            (x, y, a),
            lambda q, k, att: graph_attention(q, k, k, graph, score=GATv2(att), backend="csr"),
            lambda q, k, att: peers.gatv2(q, k, att, edge_index),
        ),
        Case(
            f"GAT, {size}",
            formula,
            (x, a, b),
            lambda h, src, dst: graph_attention(h, h, h, graph, score=GAT(src, dst), backend="csr"),
            lambda h, src, dst: peers.gat(h, src, dst, edge_index),
        ),
    ]
