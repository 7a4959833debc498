"""Rings, grids and complete bipartite graphs, against networkx's."""

import networkx
import pytest
import torch

from graphs.regular import complete_bipartite, grid, ring
from unified_attn import Full, Graph, attention


def listed(edge_index):
    edges = list(map(tuple, edge_index.t().tolist()))
    assert len(edges) == len(set(edges))
    return set(edges)


def both(graph):
    return {pair for u, v in graph.edges for pair in ((u, v), (v, u)) if u != v}


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 7])
def test_ring(nodes):
    assert listed(ring(nodes)) == both(networkx.cycle_graph(nodes))


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (1, 1), (1, 5), (3, 4), (4, 2)])
def test_grid(rows, columns):
    number = {(r, c): r * columns + c for r in range(rows) for c in range(columns)}
    expected = both(networkx.relabel_nodes(networkx.grid_2d_graph(rows, columns), number))
    assert listed(grid(rows, columns)) == expected
    assert len(expected) == max(2 * (rows * (columns - 1) + columns * (rows - 1)), 0)


@pytest.mark.parametrize(("keys", "queries"), [(0, 3), (3, 0), (1, 1), (3, 5)])
def test_complete_bipartite_attends_everything(keys, queries):
    edges = complete_bipartite(keys, queries)
    assert listed(edges) == {(j, i) for j in range(keys) for i in range(queries)}
    q, k = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4)
    graph = Graph(edges, num_keys=keys, num_queries=queries)
    out = attention(q, k, k, mask=graph, backend="reference")
    torch.testing.assert_close(out, attention(q, k, k, mask=Full(), backend="reference"))


@pytest.mark.parametrize(("make", "name"), [(lambda: ring(-1), "num_nodes"), (lambda: grid(2, -1), "columns")])
def test_negative_sizes_raise(make, name):
    with pytest.raises(ValueError, match=f"{name} is -1"):
        make()
