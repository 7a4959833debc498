"""Random graphs of known shape."""

import pytest
import torch

from graphs.dictionary_lookup import dictionary_lookup
from graphs.encodings import random_walk_returns
from graphs.generators import power_law, random_bipartite, random_typed
from graphs.regular import complete_bipartite, grid, ring
from unified_attn import Graph


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


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [(0, 1, "num_nodes is 0 and num_edges 1"), (-1, 0, "num_nodes is -1"), (3, -1, "num_edges is -1")],
)
def test_impossible_sizes_raise(nodes, edges, message):
    with pytest.raises(ValueError, match=message):
        power_law(nodes, edges)


@pytest.mark.parametrize("exponent", [float("nan"), float("inf")])
def test_an_exponent_that_is_not_finite_raises(exponent):
    with pytest.raises(ValueError, match=f"exponent is {exponent}; give a finite number"):
        power_law(5, 5, exponent=exponent)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: power_law(2.5, 1), r"num_nodes is 2\.5; give an integer"),
        (lambda: power_law(3, True), "num_edges is True"),
        (lambda: power_law(3, 1, exponent="1"), "exponent is '1'; give a number"),
        (lambda: random_bipartite(2, 3, 1.0), r"num_edges is 1\.0"),
        (lambda: random_typed({"a": 2.5}, {("a", "to", "a"): 1}), r"num_keys is 2\.5"),
        (lambda: ring(2.5), r"num_nodes is 2\.5"),
        (lambda: grid(2, 2.0), r"columns is 2\.0"),
        (lambda: complete_bipartite("2", 3), "num_keys is '2'"),
        (lambda: dictionary_lookup(2.5), r"size is 2\.5"),
        (lambda: random_walk_returns(ring(3), 3, 1.5), r"num_steps is 1\.5"),
    ],
)
def test_a_count_that_is_no_integer_raises(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_no_nodes_and_no_edges():
    assert power_law(0, 0).shape == (2, 0)


def test_random_bipartite_draws_pairs_uniformly_and_none_twice():
    assert torch.equal(random_bipartite(4, 5, 7, seed=1), random_bipartite(4, 5, 7, seed=1))
    assert not torch.equal(random_bipartite(4, 5, 7, seed=1), random_bipartite(4, 5, 7, seed=2))
    hits = torch.zeros(4, 5)
    for seed in range(2000):
        source, target = random_bipartite(4, 5, 7, seed=seed)
        assert len((source * 5 + target).unique()) == 7
        hits[source, target] += 1
    # Binomial(2000, 7 / 20): mean 700, deviation 21.
    assert (hits - 700).abs().max() < 6 * 21


def test_random_bipartite_at_its_limits():
    assert random_bipartite(0, 5, 0).shape == random_bipartite(3, 0, 0).shape == (2, 0)
    with pytest.raises(ValueError, match="num_edges is 7; 2 keys and 3 queries have fewer pairs"):
        random_bipartite(2, 3, 7)
    with pytest.raises(ValueError, match="num_queries is -1"):
        random_bipartite(2, -1, 0)


def test_random_typed_has_the_relations_asked_for():
    nodes = {"author": 6, "paper": 9, "alone": 0}
    counts = {("author", "wrote", "paper"): 20, ("paper", "cites", "paper"): 30, ("alone", "to", "author"): 0}
    edges = random_typed(nodes, counts, seed=5)
    assert {relation: ends.shape[1] for relation, ends in edges.items()} == counts
    for (source, _, target), ends in edges.items():
        Graph(ends, num_keys=nodes[source], num_queries=nodes[target]).check_unique()
    again = random_typed(nodes, counts, seed=5)
    other = random_typed(nodes, counts, seed=6)
    for relation in list(counts)[:2]:
        assert torch.equal(edges[relation], again[relation])
        assert not torch.equal(edges[relation], other[relation])


def test_random_typed_names_a_type_that_is_not_there():
    with pytest.raises(ValueError, match=r"no node type 'book'; types are \['author'\]"):
        random_typed({"author": 2}, {("author", "wrote", "book"): 1})
