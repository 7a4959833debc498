"""Degrees, random walks and Laplacian eigenvectors against their formulas, networkx and torch-geometric."""

import networkx
import pytest
import torch

from graphs.edges import both_directions, without_loops
from graphs.encodings import degrees, random_walk_returns
from graphs.generators import power_law
from graphs.laplacian import DENSE, flip_signs, laplacian_eigenvectors
from graphs.paths import path_edges
from graphs.regular import grid, ring

EMPTY = torch.empty(2, 0, dtype=torch.int64)
DIRECTED = power_law(12, 40, seed=2)


def dense(edge_index, nodes):
    return torch.zeros(nodes, nodes, dtype=torch.float64).index_put_(
        tuple(edge_index), torch.ones((), dtype=torch.float64), accumulate=True
    )


def test_degrees_are_those_of_networkx():
    graph = networkx.MultiDiGraph(DIRECTED.t().tolist())
    graph.add_nodes_from(range(12))
    incoming, outgoing = degrees(DIRECTED, 12)
    assert incoming.tolist() == [graph.in_degree(node) for node in range(12)]
    assert outgoing.tolist() == [graph.out_degree(node) for node in range(12)]
    assert [d.shape for d in degrees(EMPTY, 0)] == [(0,), (0,)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_edges_of_other_integers_are_taken_too(dtype):
    narrow = DIRECTED.to(dtype)
    for one, two in zip(degrees(narrow, 12), degrees(DIRECTED, 12), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(random_walk_returns(narrow, 12, 3), random_walk_returns(DIRECTED, 12, 3))
    assert torch.equal(laplacian_eigenvectors(narrow, 12, 3), laplacian_eigenvectors(DIRECTED, 12, 3))
    for one, two in zip(path_edges(narrow, 12), path_edges(DIRECTED, 12), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("edge_index", "nodes"), [(DIRECTED, 12), (grid(3, 4), 12), (ring(5), 7), (EMPTY, 2)])
def test_returns_are_the_diagonals_of_powers(edge_index, nodes):
    counts = dense(edge_index, nodes)
    step = counts / counts.sum(1, keepdim=True).clamp_min(1)
    expected = torch.stack([torch.linalg.matrix_power(step, t).diagonal() for t in range(1, 7)], dim=1)
    found = random_walk_returns(edge_index, nodes, 6)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-7, rtol=1e-6)


def test_returns_are_those_of_torch_geometric():
    pyg = pytest.importorskip("torch_geometric")
    data = pyg.data.Data(edge_index=grid(3, 4), num_nodes=12)
    theirs = pyg.transforms.AddRandomWalkPE(5, attr_name="walk")(data).walk
    torch.testing.assert_close(random_walk_returns(grid(3, 4), 12, 5), theirs)


def test_returns_without_nodes_or_steps():
    assert random_walk_returns(EMPTY, 0, 3).shape == (0, 3)
    assert random_walk_returns(ring(4), 4, 0).shape == (4, 0)
    with pytest.raises(ValueError, match="num_steps is -1"):
        random_walk_returns(ring(4), 4, -1)


def connected(nodes, seed):
    """A path and some edges more: no two eigenvalues are equal."""
    along = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    return torch.cat([along, power_law(nodes, nodes // 3, exponent=0, seed=seed)], dim=1)


def eigenvalues(edge_index, nodes, vectors):
    """<v, L v> of each column, after a check that L v = value v."""
    symmetric = dense(edge_index, nodes)
    symmetric = ((symmetric + symmetric.t()) > 0).double()
    symmetric.fill_diagonal_(0)
    scale = symmetric.sum(1).rsqrt()
    laplacian = torch.eye(nodes, dtype=torch.float64) - scale[:, None] * symmetric * scale
    values = (vectors * (laplacian @ vectors)).sum(0)
    torch.testing.assert_close(laplacian @ vectors, vectors * values, atol=1e-6, rtol=0)
    return values, torch.linalg.eigvalsh(laplacian)


@pytest.mark.parametrize("nodes", [12, DENSE + 1])
@pytest.mark.parametrize("make", [lambda nodes: connected(nodes, 0), ring])
def test_eigenvectors_satisfy_their_equation(nodes, make):
    edge_index = make(nodes)
    vectors = laplacian_eigenvectors(edge_index, nodes, 5).double()
    values, all_values = eigenvalues(edge_index, nodes, vectors)
    torch.testing.assert_close(values, all_values[1:6], atol=1e-6, rtol=0)
    torch.testing.assert_close(vectors.t() @ vectors, torch.eye(5, dtype=torch.float64), atol=1e-6, rtol=0)
    assert (vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) > 0).all()
    assert torch.equal(vectors, laplacian_eigenvectors(edge_index, nodes, 5).double())


def test_eigenvectors_are_those_of_torch_geometric_but_for_the_sign():
    pyg = pytest.importorskip("torch_geometric")
    edges = both_directions(without_loops(connected(15, 3)), 15)
    data = pyg.data.Data(edge_index=edges, num_nodes=15)
    theirs = pyg.transforms.AddLaplacianEigenvectorPE(4, attr_name="place", is_undirected=True)(data).place
    torch.testing.assert_close(laplacian_eigenvectors(edges, 15, 4).abs(), theirs.abs(), atol=1e-5, rtol=0)


def test_a_packed_graph_has_the_vectors_of_its_parts_and_small_parts_have_zeros():
    first, second = connected(9, 1), connected(4, 2)
    packed = torch.cat([second, first + 4], dim=1)
    vectors = laplacian_eigenvectors(packed, 14, 5)  # node 13 is alone
    torch.testing.assert_close(vectors[:4], laplacian_eigenvectors(second, 4, 5))
    torch.testing.assert_close(vectors[4:13], laplacian_eigenvectors(first, 9, 5))
    assert (vectors[:4, 3:] == 0).all()
    assert (vectors[:4, :3].norm(dim=0) - 1).abs().max() < 1e-6
    assert (vectors[13] == 0).all()


def test_vectors_move_with_the_numbers_of_nodes():
    edges = connected(11, 5)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    moved = laplacian_eigenvectors(order[edges], 11, 4)
    torch.testing.assert_close(moved[order], laplacian_eigenvectors(edges, 11, 4), atol=1e-6, rtol=0)


def test_no_nodes_no_edges_no_vectors():
    assert laplacian_eigenvectors(EMPTY, 0, 3).shape == (0, 3)
    assert laplacian_eigenvectors(ring(4), 4, 0).shape == (4, 0)
    assert (laplacian_eigenvectors(EMPTY, 3, 2) == 0).all()
    with pytest.raises(ValueError, match="num_vectors is -1"):
        laplacian_eigenvectors(ring(4), 4, -1)


def test_signs_flip_by_graph_and_column():
    vectors = torch.rand(6, 40) + 0.1
    batch = torch.tensor([0, 0, 0, 1, 1, 3])
    flipped = flip_signs(vectors, batch=batch, generator=torch.Generator().manual_seed(0))
    signs = flipped / vectors
    assert (signs.abs() == 1).all()
    for graph in range(4):
        own = signs[batch == graph]
        assert (own == own[:1]).all()
    assert (signs[0] != signs[3]).any()
    assert 5 < (signs[0] > 0).sum() < 35
    whole = flip_signs(vectors, generator=torch.Generator().manual_seed(0)) / vectors
    assert (whole == whole[:1]).all()
    assert flip_signs(torch.empty(0, 3)).shape == (0, 3)
