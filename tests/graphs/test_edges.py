"""Edge lists, features and splits made ready."""

import pytest
import torch

from graphs.edges import both_directions, unique_edges, without_loops
from graphs.features import row_normalized
from graphs.splits import Split, stratified_folds

EDGES = torch.tensor([[0, 3, 0, 2, 2], [1, 1, 1, 2, 0]])


def listed(edge_index):
    return list(map(tuple, edge_index.t().tolist()))


def test_each_edge_stays_once():
    assert listed(unique_edges(EDGES, 4)) == [(2, 0), (0, 1), (3, 1), (2, 2)]
    assert listed(without_loops(EDGES)) == [(0, 1), (3, 1), (0, 1), (2, 0)]


def test_both_directions_are_there_and_a_loop_is_one_edge():
    expected = sorted({(0, 1), (1, 0), (3, 1), (1, 3), (2, 2), (2, 0), (0, 2)}, key=lambda edge: edge[::-1])
    assert listed(both_directions(EDGES, 4)) == expected


def test_no_nodes_and_no_edges():
    empty = torch.empty(2, 0, dtype=torch.int64)
    for made in (unique_edges(empty, 0), both_directions(empty, 0), both_directions(empty, 3), without_loops(empty)):
        assert made.shape == (2, 0)


def test_other_integers_are_widened_before_they_overflow():
    nodes = 2**17  # edges are told apart by numbers up to its square
    wide = torch.tensor([[nodes - 1, 0, nodes - 1], [nodes - 2, nodes - 1, nodes - 2]])
    for make in (unique_edges, both_directions):
        assert torch.equal(make(wide.int(), nodes), make(wide, nodes))


def test_an_edge_of_no_node_raises():
    with pytest.raises(ValueError, match=r"edge_index\[0\]\[1\] is 3; it must lie in 0\.\.2"):
        both_directions(EDGES, 3)


def test_rows_sum_to_one_and_empty_rows_stay():
    x = torch.rand(5, 3, dtype=torch.float64)
    x[2] = 0
    normal = row_normalized(x)
    assert torch.allclose(normal.sum(1), torch.tensor([1, 1, 0, 1, 1], dtype=torch.float64))
    assert torch.allclose(normal[0] / normal[0, 0], x[0] / x[0, 0])
    with pytest.raises(TypeError, match="int64"):
        row_normalized(torch.ones(2, 2, dtype=torch.int64))


def test_folds_hold_each_class_in_its_proportion_and_each_item_once():
    y = torch.tensor([0] * 34 + [1] * 61 + [2] * 12)[torch.randperm(107, generator=torch.Generator().manual_seed(0))]
    folds = stratified_folds(y, 5, seed=3)
    for fold, following in zip(folds, folds[1:] + folds[:1], strict=True):
        counts = torch.bincount(y[fold.test], minlength=3)
        assert (counts * 5 - torch.bincount(y)).abs().max() < 5
        assert len(fold.test) in (21, 22)
        assert torch.equal(fold.val, following.test)
        assert torch.equal(torch.cat([fold.train, fold.val, fold.test]).sort().values, torch.arange(107))
    assert torch.equal(torch.cat([fold.test for fold in folds]).sort().values, torch.arange(107))
    assert torch.equal(folds[0].test, stratified_folds(y, 5, seed=3)[0].test)
    assert not torch.equal(folds[0].test, stratified_folds(y, 5, seed=4)[0].test)


@pytest.mark.parametrize("number", [2, 8])
def test_impossible_folds_raise(number):
    with pytest.raises(ValueError, match=rf"num_folds is {number}; it must lie in 3\.\.7"):
        stratified_folds(torch.zeros(7, dtype=torch.int64), number)


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        (([0, 1], [2], [3, 4, 3]), ValueError, "a split holds 3 more than once, in test; give each number once"),
        (([0, 1], [5, 1], [3]), ValueError, "holds 1 more than once, in train and val"),
        (([0], [1], [2, -3]), ValueError, r"test\[1\] is -3; it must be 0 or more"),
        (([0.0], [1], [2]), TypeError, r"train is torch\.float32"),
        (([0], [[1]], [2]), ValueError, r"val has shape \[1, 1\]"),
    ],
)
def test_a_split_has_each_number_once(parts, error, message):
    with pytest.raises(error, match=message):
        Split(*map(torch.tensor, parts))


def test_a_part_of_a_split_may_be_empty():
    none = torch.empty(0, dtype=torch.int64)
    assert repr(Split(torch.tensor([4, 2]), none, none)) == "Split(2 train, 0 val, 0 test)"


def test_a_number_of_folds_that_is_no_integer_raises():
    with pytest.raises(TypeError, match=r"num_folds is 3\.5"):
        stratified_folds(torch.zeros(7, dtype=torch.int64), 3.5)
