"""Case 80: no graph layer makes a large tensor of edges x heads x channels, forward or backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unified_attn import Graph, vectors
from unified_attn import nn as ours

# Primes, so that a product is recognised: N nodes, E edges, F features of a node, R of an edge.
N, E, F, R = 53, 1009, 5, 3
HEADS, SIZE = 3, 4


class Created(TorchDispatchMode):
    """Notes the number of elements of every tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.sizes |= {x.numel() for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, Tensor)}
        return out


def step(layer: Any) -> set[int]:
    g = torch.Generator().manual_seed(0)
    x, edge_index = torch.randn(N, F, generator=g).requires_grad_(), torch.randint(0, N, (2, E), generator=g)
    edge_attr = torch.randn(E, R, generator=g).requires_grad_() if layer.edge_dim else None
    with Created() as mode:
        layer(x, edge_index, edge_attr).square().sum().backward()
    return mode.sizes


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
@pytest.mark.parametrize("edge_dim", [None, R])
def test_no_tensor_of_edges_by_channels(name: str, edge_dim: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "FORMED", 0)  # the features of few edges are projected at once
    layer = getattr(ours, name)(F, SIZE, heads=HEADS, edge_dim=edge_dim)
    sizes = step(layer)
    assert N * HEADS * SIZE in sizes  # the output was seen
    assert max(sizes) < E * HEADS * SIZE
    assert max(sizes) <= (E + N) * max(HEADS, 2, R)


@pytest.mark.parametrize("name", ["GATv2Conv", "TransformerConv"])
def test_both_ways_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of edges projected at once, or inside of the kernel: with a node alone, and with edges hidden."""
    g = torch.Generator().manual_seed(0)
    layer = getattr(ours, name)(F, SIZE, heads=HEADS, edge_dim=R, **NO_LOOPS.get(name, {})).double()
    x = torch.randn(N, F, generator=g, dtype=torch.float64).requires_grad_()
    edge_attr = torch.randn(E, R, generator=g, dtype=torch.float64).requires_grad_()
    graph = Graph(torch.randint(0, N - 1, (2, E), generator=g), num_keys=N)
    for edges in (graph, graph.keep(torch.rand(E, generator=g) < 0.7)):
        results = []
        for formed in (0, vectors.FORMED):
            with monkeypatch.context() as patch:
                patch.setattr(vectors, "FORMED", formed)
                out = layer(x, edges, edge_attr)
                results.append([out, *torch.autograd.grad(out.sin().sum(), [x, edge_attr, *layer.parameters()])])
        for a, b in zip(*results, strict=True):
            assert b.abs().max() > 0
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


NO_LOOPS = {"GATv2Conv": {"add_self_loops": False}}


def test_this_way_of_looking_finds_messages() -> None:
    import torch_geometric.nn as pyg

    assert max(step(pyg.GATv2Conv(F, SIZE, heads=HEADS, edge_dim=R))) >= E * HEADS * SIZE
