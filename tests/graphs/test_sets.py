"""Data sets as objects: packing, and what does not fit together."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from graphs.hetero import HeteroNodes
from graphs.nodes import NodeData
from graphs.packed import GraphSet
from graphs.splits import Split


def split(train, val, test):
    return Split(*(torch.tensor([number]) for number in (train, val, test)))


def three_graphs():
    """A path of three nodes, a node alone, and a pair; features say graph and node."""
    return GraphSet(
        name="three",
        x=torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0], [2.0, 0.0], [2.0, 1.0]]),
        edge_index=torch.tensor([[0, 1, 0], [1, 2, 1]]),
        node_ptr=torch.tensor([0, 3, 4, 6]),
        edge_ptr=torch.tensor([0, 2, 2, 3]),
        y=torch.tensor([5, 6, 7]),
        edge_type=torch.tensor([1, 2, 3]),
    )


def test_a_batch_holds_its_graphs_one_after_the_other():
    batch = three_graphs().batch([2, 1, 0, 2])
    assert batch.x[:, 0].tolist() == [2, 2, 1, 0, 0, 0, 2, 2]
    assert batch.batch.tolist() == [0, 0, 1, 2, 2, 2, 3, 3]
    assert batch.edge_index.tolist() == [[0, 3, 4, 6], [1, 4, 5, 7]]
    assert batch.edge_type.tolist() == [3, 1, 2, 3]
    assert batch.y.tolist() == [7, 6, 5, 7]
    assert batch.graph().num_keys == 8


def test_batches_come_from_torchs_loader():
    data = three_graphs()
    found = list(DataLoader([2, 0, 1], batch_size=2, collate_fn=data.batch))
    assert [batch.y.tolist() for batch in found] == [[7, 5], [6]]


def test_a_batch_may_be_empty():
    batch = three_graphs().batch([])
    assert batch.x.shape == (0, 2)
    assert batch.edge_index.shape == (2, 0)
    assert len(batch.y) == 0


def test_a_graph_that_is_not_there_raises():
    with pytest.raises(ValueError, match=r"graphs\[1\] is 3; it must lie in 0\.\.2"):
        three_graphs().batch([0, 3])
    with pytest.raises(TypeError, match=r"graphs is torch\.bool"):
        three_graphs().batch(torch.tensor([True, False, True]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_ptr": torch.tensor([0, 3, 4, 5])}, "node_ptr must rise from 0 to 6 in 3 steps"),
        ({"edge_ptr": torch.tensor([0, 2, 1, 3])}, "edge_ptr must rise"),
        ({"edge_index": torch.tensor([[0, 1, 0], [1, 2, 2]])}, r"edge 2 is \[0, 2\]; its graph has fewer nodes"),
        ({"edge_index": torch.tensor([[0, 1, -1], [1, 2, 1]])}, r"edge_index\[0\]\[2\] is -1"),
        ({"edge_type": torch.tensor([1])}, "edge_type has 1 rows; there are 3 edges"),
        ({"splits": [split(0, 1, 3)]}, r"splits\[0\]\.test\[0\] is 3; it must lie in 0\.\.2"),
    ],
)
def test_a_set_of_graphs_that_does_not_fit_together_raises(change, message):
    with pytest.raises(ValueError, match=message):
        replace(three_graphs(), **change)


def test_node_data_checks_its_sizes():
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    data = NodeData("small", x, y, torch.tensor([[0], [2]]), [], 1)
    assert data.graph().num_keys == data.num_nodes == 3
    with pytest.raises(ValueError, match=r"edge_index\[1\]\[0\] is 3; it must lie in 0\.\.2"):
        replace(data, edge_index=torch.tensor([[0], [3]]))
    with pytest.raises(ValueError, match="x has 3 rows and y has 2"):
        replace(data, y=y[:2])
    with pytest.raises(ValueError, match=r"edge_index is \[3, 2\]"):
        replace(data, edge_index=torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"edge_index is \[2, 2\] float32; give a \[2, E\] tensor of integers"):
        replace(data, edge_index=torch.zeros(2, 2))
    with pytest.raises(TypeError, match="edge_index is a list"):
        replace(data, edge_index=[[0], [1]])
    assert torch.equal(replace(data, edge_index=data.edge_index.int()).edge_index, data.edge_index)
    assert replace(data, edge_index=data.edge_index.int()).edge_index.dtype == torch.int64
    with pytest.raises(ValueError, match=r"splits\[1\]\.val\[0\] is 3; it must lie in 0\.\.2"):
        replace(data, splits=[split(0, 1, 2), split(0, 3, 2)])


def test_hetero_nodes_check_their_types_and_sizes():
    x = {"a": torch.zeros(3, 2), "b": torch.zeros(2, 5)}
    ends = torch.tensor([[0, 2], [1, 1]])
    data = HeteroNodes("small", x, {("a", "to", "b"): ends}, torch.zeros(2), "b", [], 1)
    assert data.metadata() == (["a", "b"], [("a", "to", "b")])
    with pytest.raises(ValueError, match=r"no node type 'c'; types are \['a', 'b'\]"):
        replace(data, edge_index={("a", "to", "c"): ends})
    with pytest.raises(ValueError, match=r"edge_index\[0\]\[1\] is 2; it must lie in 0\.\.1"):
        replace(data, edge_index={("b", "to", "a"): ends})
    assert replace(data, edge_index={("a", "to", "b"): ends.int()}).edge_index["a", "to", "b"].dtype == torch.int64
    with pytest.raises(ValueError, match=r"splits\[0\]\.test\[0\] is 2; it must lie in 0\.\.1"):
        replace(data, splits=[split(0, 1, 2)])
    with pytest.raises(ValueError, match="y has 2 rows; there are 3 nodes of 'a'"):
        replace(data, target="a")
