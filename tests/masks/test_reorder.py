"""Renumbered nodes: the same graph, closer together."""

import pytest
import torch

from graphs.regular import grid
from unified_attn import EdgeBias, Graph, graph_attention


def shuffled(nodes: int = 400) -> Graph:
    side = int(nodes**0.5)
    number = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))
    return Graph(number[grid(side, side)], num_keys=nodes)


def bandwidth(graph: Graph) -> int:
    return int((graph.edge_index[0] - graph.edge_index[1]).abs().max())


def test_neighbours_come_to_lie_together():
    graph = shuffled()
    near, order = graph.reorder()
    assert order.sort().values.tolist() == list(range(400))
    assert order[near.edge_index].equal(graph.edge_index)
    assert bandwidth(near) <= 40 < 300 < bandwidth(graph)


def test_attention_is_the_same_with_features_of_edges():
    graph = shuffled(100)
    near, order = graph.reorder()
    q, k, v = torch.randn(3, 100, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    values = torch.randn(graph.num_edges, 2, dtype=torch.float64).requires_grad_()
    out = graph_attention(q, k, v, graph, bias=EdgeBias(values))
    moved = graph_attention(q[order], k[order], v[order], near, bias=EdgeBias(values))
    torch.testing.assert_close(moved[order.argsort()], out, rtol=1e-12, atol=1e-12)
    before, after = (torch.autograd.grad(x.square().sum(), values)[0] for x in (out, moved))
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("edges", [[[], []], [[0, 0, 3], [0, 3, 0]], [[4, 4], [1, 1]]])
def test_loops_parallel_edges_and_nodes_without(edges):
    graph = Graph(torch.tensor(edges, dtype=torch.int32), num_keys=5)
    near, order = graph.reorder()
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(5))
    assert order[near.edge_index].tolist() == graph.edge_index.tolist()


def test_what_cannot_be_renumbered_raises():
    with pytest.raises(ValueError, match="without num_keys"):
        Graph(torch.tensor([[0], [1]])).reorder()
    with pytest.raises(ValueError, match="two sets of nodes"):
        Graph(torch.tensor([[0], [1]]), num_keys=3, num_queries=2).reorder()
