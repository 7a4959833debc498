"""Random graphs of known shape."""

import pytest
import torch

from graphs.generators import power_law


def test_power_law_has_the_sizes_asked_for_and_comes_from_its_seed():
    edges = power_law(50, 400, seed=3)
    assert edges.shape == (2, 400)
    assert edges.dtype == torch.int64
    assert int(edges.min()) >= 0
    assert int(edges.max()) < 50
    assert torch.equal(edges, power_law(50, 400, seed=3))
    assert not torch.equal(edges, power_law(50, 400, seed=4))


def test_degrees_follow_the_power_law():
    """The share of the most frequent tenth of nodes, against the sum of the weights that the docstring names."""
    nodes, edges = 2000, 200_000
    weights = torch.arange(10, nodes + 10, dtype=torch.float64) ** -0.75
    expected = float(weights[:200].sum() / weights.sum())
    for end in power_law(nodes, edges, seed=0):
        degrees = torch.bincount(end, minlength=nodes).sort(descending=True).values
        assert abs(float(degrees[:200].sum()) / edges - expected) < 0.01


@pytest.mark.parametrize(("nodes", "edges"), [(0, 1), (-1, 0), (3, -1)])
def test_impossible_sizes_raise(nodes, edges):
    with pytest.raises(ValueError, match=f"num_nodes is {nodes} and num_edges {edges}"):
        power_law(nodes, edges)


def test_no_nodes_and_no_edges():
    assert power_law(0, 0).shape == (2, 0)
