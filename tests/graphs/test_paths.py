"""Shortest paths against networkx."""

import networkx
import pytest
import torch

from graphs.generators import power_law
from graphs.packed import GraphSet
from graphs.paths import distance_blocks, path_edges, shortest_paths
from graphs.ranges import pointers
from graphs.regular import grid, ring
from unified_attn import Graph, PathFeatures

EMPTY = torch.empty(2, 0, dtype=torch.int64)
GRAPHS = {
    "directed, parallel edges, loops, unreachable nodes": (power_law(25, 50, seed=1), 25),
    "grid": (grid(4, 5), 20),
    "two parts": (torch.cat([ring(5), ring(4) + 5], dim=1), 9),
    "no edges": (EMPTY, 3),
    "one node": (EMPTY, 1),
    "a loop alone": (torch.tensor([[0], [0]]), 1),
    "no nodes": (EMPTY, 0),
}
graphs = pytest.mark.parametrize(("edge_index", "nodes"), GRAPHS.values(), ids=GRAPHS)


@graphs
def test_distances_are_those_of_networkx(edge_index, nodes):
    graph = networkx.DiGraph(edge_index.t().tolist())
    graph.add_nodes_from(range(nodes))
    expected = torch.full((nodes, nodes), -1)
    for j, lengths in networkx.all_pairs_shortest_path_length(graph):
        for i, length in lengths.items():
            expected[i, j] = length
    distance = shortest_paths(edge_index, nodes)
    assert distance.dtype == torch.int64
    assert torch.equal(distance, expected)


def test_an_edge_is_distance_one_where_the_mask_allows_it():
    edge_index = torch.tensor([[0, 1], [1, 2]])
    distance = shortest_paths(edge_index, 3)
    mask = Graph(edge_index, num_keys=3).draw(3, 3)
    assert [["#" if d == 1 else "." for d in row] for row in distance.tolist()] == [list(row) for row in mask.split()]


def test_blocks_are_the_parts_of_the_packed_graphs_distances():
    counts, edges = torch.tensor([5, 0, 9, 1]), torch.tensor([10, 0, 20, 0])
    parts = [ring(5), power_law(9, 20, seed=3)]
    data = GraphSet("some", torch.zeros(15), torch.cat(parts, dim=1), pointers(counts), pointers(edges), torch.zeros(4))
    batch = data.batch([2, 1, 0, 3])
    blocks = [distance_blocks(data)[g] for g in (2, 1, 0, 3)]
    same = batch.batch[:, None] == batch.batch
    expected = torch.block_diag(*[block + 1 for block in blocks if len(block)]) - 1
    assert torch.equal(shortest_paths(batch.edge_index, 15), torch.where(same, expected, -1))


@graphs
def test_edges_along_a_path_lead_from_key_to_query(edge_index, nodes):
    distance, edges = path_edges(edge_index, nodes)
    assert torch.equal(distance, shortest_paths(edge_index, nodes))
    assert edges.shape == (nodes, nodes, max(int(distance.max()), 0) if nodes else 0)
    for i in range(nodes):
        for j in range(nodes):
            path = edges[i, j].tolist()
            length = max(int(distance[i, j]), 0)
            assert path[length:] == [-1] * (len(path) - length)
            here = i
            for edge in path[:length]:
                assert edge_index[1, edge] == here
                here = int(edge_index[0, edge])
            assert distance[i, j] == -1 or here == j


def test_of_parallel_edges_the_first_is_taken():
    edge_index = torch.tensor([[1, 0, 0, 1], [2, 1, 1, 2]])
    assert path_edges(edge_index, 3)[1][2, 0].tolist() == [0, 1]


def test_long_paths_keep_the_edges_nearest_the_query():
    full = path_edges(grid(1, 6), 6)[1]
    for length in (0, 2, 9):
        distance, cut = path_edges(grid(1, 6), 6, max_length=length)
        assert int(distance.max()) == 5
        assert torch.equal(cut, full[..., :length])
    with pytest.raises(ValueError, match="max_length is -1"):
        path_edges(grid(1, 6), 6, max_length=-1)


def test_an_index_out_of_range_raises():
    with pytest.raises(ValueError, match=r"edge_index\[1\]\[0\] is 3; it must lie in 0\.\.2"):
        shortest_paths(torch.tensor([[0], [3]]), 3)


def test_path_features_take_the_edges_in_this_order() -> None:
    """On the way 0 -> 1 -> 2 the edge at the query 2 is edge 1: it gets the weight of the first place."""
    _, paths = path_edges(torch.tensor([[0, 1], [1, 2]]), 3)
    features = PathFeatures(1, max_length=2, num_heads=1)
    features.weight.data.copy_(torch.tensor([1.0, 0.5]).reshape(2, 1, 1))
    zero = torch.tensor(0)
    bias = features(torch.tensor([[4.0], [10.0]]), paths).add(zero, zero, torch.tensor(2), torch.arange(3), None)
    assert bias.tolist() == [(10.0 + 0.5 * 4.0) / 2, 10.0, 0.0]
    for documented in (PathFeatures, PathFeatures.forward, path_edges):
        assert "the one at i first, the one at j last" in " ".join(str(documented.__doc__).split())
