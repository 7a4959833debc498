"""Sampled neighbourhoods: true edges, no more than asked for, uniform, and exact where nothing is left out."""

import networkx
import numpy as np
import pytest
import torch

from graphs.generators import power_law
from graphs.regular import ring
from graphs.sampling import Neighbors, distinct
from unified_attn import GAT, EdgeBias, Graph, graph_attention

NODES, EDGES = 300, 4000
EDGE_INDEX = power_law(NODES, EDGES, seed=7)  # with parallel edges, loops, nodes without edges, and hubs
SEEDS = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))[:40]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("fanouts", [[3, 5], [-1, 2], [4, -1], [0, 3], [1000, 1000], [2, 2, 2]])
def test_blocks_hold_edges_of_the_graph_and_fit_together(fanouts):
    blocks = Neighbors(EDGE_INDEX, NODES).sample(SEEDS, fanouts, generator())
    assert len(blocks) == len(fanouts)
    assert torch.equal(blocks[-1].nodes[: blocks[-1].num_targets], SEEDS)
    degree = torch.bincount(EDGE_INDEX[1], minlength=NODES)
    for block, fanout in zip(blocks, fanouts, strict=True):
        target = block.nodes[: block.num_targets]
        ends = torch.stack([block.nodes[block.edge_index[0]], target[block.edge_index[1]]])
        assert torch.equal(ends, EDGE_INDEX[:, block.edge_ids])
        assert len(block.nodes.unique()) == len(block.nodes)
        assert len(block.edge_ids.unique()) == len(block.edge_ids)
        counts = torch.bincount(block.edge_index[1], minlength=block.num_targets)
        assert torch.equal(counts, degree[target] if fanout == -1 else degree[target].clamp_max(fanout))
        graph = block.graph()
        assert (graph.num_keys, graph.num_queries) == (len(block.nodes), len(target))
    for nearer, farther in zip(blocks[1:], blocks[:-1], strict=True):
        assert torch.equal(farther.nodes[: farther.num_targets], nearer.nodes)


def test_a_generator_fixes_the_sample():
    neighbors = Neighbors(EDGE_INDEX, NODES)
    first, same, other = (neighbors.sample(SEEDS, [4, 4], generator(seed)) for seed in (3, 3, 4))
    for one, two in zip(first, same, strict=True):
        assert torch.equal(one.edge_ids, two.edge_ids)
    assert not torch.equal(first[1].edge_ids, other[1].edge_ids)


def two_layers(x, graphs, weights, biases, targets):
    """Multi-head GAT twice; queries are the first rows of the keys."""
    for graph, weight, bias, count in zip(graphs, weights, biases, targets, strict=True):
        h = (x @ weight).reshape(len(x), 2, -1)
        score = GAT(weight[0].reshape(2, -1), weight[1].reshape(2, -1))
        out = graph_attention(h[:count], h, h, graph, bias=EdgeBias(bias), score=score, backend="reference")
        x = out.reshape(count, -1).tanh()
    return x


def test_with_all_neighbours_two_layers_give_what_the_whole_graph_gives():
    torch.manual_seed(0)
    x = torch.randn(NODES, 8, dtype=torch.float64)
    weights = [torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    edge_bias = torch.randn(EDGES, 2, dtype=torch.float64, requires_grad=True)
    whole = Graph(EDGE_INDEX, num_keys=NODES)
    expected = two_layers(x, [whole, whole], weights, [edge_bias] * 2, [NODES] * 2)[SEEDS]
    blocks = Neighbors(EDGE_INDEX, NODES).sample(SEEDS, [-1, -1])
    assert blocks[0].num_targets < len(blocks[0].nodes) < NODES
    found = two_layers(
        x[blocks[0].nodes],
        [block.graph() for block in blocks],
        weights,
        [edge_bias[block.edge_ids] for block in blocks],
        [block.num_targets for block in blocks],
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    out_grad = torch.randn_like(expected)
    leaves = [*weights, edge_bias]
    for got, want in zip(
        torch.autograd.grad(found, leaves, out_grad), torch.autograd.grad(expected, leaves, out_grad), strict=True
    ):
        assert want.abs().max() > 0
        torch.testing.assert_close(got, want, atol=1e-10, rtol=0)


def test_all_neighbours_are_those_of_networkx():
    graph = networkx.DiGraph(EDGE_INDEX.t().tolist())
    graph.add_nodes_from(range(NODES))
    seed = int(torch.bincount(EDGE_INDEX[1]).argmin())
    for count in range(4):
        reached = networkx.single_source_shortest_path_length(graph.reverse(), seed, cutoff=count)
        blocks = Neighbors(EDGE_INDEX, NODES).sample(torch.tensor([seed]), [-1] * count)
        assert set(blocks[0].nodes.tolist() if blocks else [seed]) == set(reached)


@pytest.mark.parametrize(("count", "number"), [(5, 2), (7, 6), (3, 3), (9, 1)])
def test_every_set_is_as_likely_as_any_other(count, number):
    rows = 60_000
    chosen = distinct(torch.full((rows,), count), number, generator())
    assert (chosen.diff(dim=1) > 0).all()
    assert int(chosen.min()) >= 0
    assert int(chosen.max()) < count
    _, hits = (2**chosen).sum(1).unique(return_counts=True)
    sets = torch.combinations(torch.arange(count), number).shape[0]
    assert len(hits) == sets
    expected = rows / sets
    assert (hits - expected).abs().max() < 6 * expected**0.5  # six standard deviations


def test_each_neighbour_of_a_hub_is_as_likely_as_any_other():
    star = torch.stack([torch.arange(20), torch.zeros(20, dtype=torch.int64)])
    neighbors = Neighbors(star, 20)
    draw = generator()
    hits = torch.zeros(20)
    for _ in range(400):
        hits[neighbors.sample(torch.tensor([0]), [5], draw)[0].edge_ids] += 1
    assert hits.sum() == 2000
    assert (hits - 100).abs().max() < 6 * 100**0.5


def test_rows_of_different_counts_get_numbers_below_their_own():
    counts = torch.tensor([3, 1000, 4, 2**31])
    chosen = distinct(counts, 3, generator())
    assert chosen[0].tolist() == [0, 1, 2]
    assert (chosen < counts[:, None]).all()
    assert int(chosen[3].max()) > 10**6
    assert distinct(counts[:0], 3).shape == (0, 3)
    assert distinct(counts, 0).shape == (4, 0)


def test_compressed_rows_are_the_same_graph():
    indptr, indices = torch.tensor([0, 2, 2, 3]), torch.tensor([2, 1, 0])
    (block,) = Neighbors.from_csr(indptr, indices).sample(torch.tensor([2, 0]), [-1])
    assert block.nodes.tolist() == [2, 0, 1]
    assert block.edge_ids.tolist() == [2, 0, 1]
    assert block.edge_index.tolist() == [[1, 0, 2], [0, 1, 1]]
    with pytest.raises(ValueError, match="indptr must rise"):
        Neighbors.from_csr(torch.tensor([0, 2, 1, 3]), indices)


def test_int32_edges_and_an_array_of_fanouts_give_the_same_samples():
    wide = Neighbors(EDGE_INDEX, NODES).sample(SEEDS, [4, 4], generator())
    narrow = Neighbors(EDGE_INDEX.int(), NODES).sample(SEEDS, np.array([4, 4]), generator())
    for one, two in zip(wide, narrow, strict=True):
        assert torch.equal(one.edge_index, two.edge_index)
        assert one.nodes.dtype == two.nodes.dtype


def test_nothing_to_sample():
    neighbors = Neighbors(torch.empty(2, 0, dtype=torch.int64), 3)
    (block,) = neighbors.sample(torch.tensor([2, 0]), [4])
    assert block.nodes.tolist() == [2, 0]
    assert block.edge_index.shape == (2, 0)
    (block,) = neighbors.sample(torch.empty(0, dtype=torch.int64), [-1])
    assert len(block.nodes) == block.num_targets == 0
    assert neighbors.sample(torch.tensor([1]), []) == []


@pytest.mark.parametrize(
    ("seeds", "fanouts", "error", "message"),
    [
        (torch.tensor([0, 4]), [1], ValueError, r"seeds\[1\] is 4; it must lie in 0\.\.3"),
        (torch.tensor([-1]), [1], ValueError, r"seeds\[0\] is -1"),
        (torch.tensor([1, 0, 1]), [1], ValueError, "seeds holds some of its 3 nodes twice"),
        (torch.tensor([1]), [2, -2], ValueError, "fanouts holds -2"),
        (torch.ones(4, dtype=torch.bool), [1], TypeError, r"seeds is torch\.bool"),
        (torch.tensor([[1]]), [1], ValueError, r"seeds has shape \[1, 1\]"),
        (torch.tensor([1]), [1, 2.5], TypeError, r"fanouts\[1\] is 2\.5; give a number of edges, or -1 for all"),
        (torch.tensor([1]), 3, TypeError, "fanouts is 3; give a list of numbers of edges, one a layer"),
    ],
)
def test_wrong_arguments_raise(seeds, fanouts, error, message):
    with pytest.raises(error, match=message):
        Neighbors(ring(4), 4).sample(seeds, fanouts)


def test_a_wrong_edge_raises():
    with pytest.raises(ValueError, match=r"edge_index\[0\]\[0\] is 9; it must lie in 0\.\.3"):
        Neighbors(torch.tensor([[9], [0]]), 4)
