"""networkx in and out. pyg-team/pytorch_geometric #830, #7112, #4294, #1005, #1221, #5198, #5816."""

import networkx
import numpy as np
import pytest
import torch

from graphs.networkx import Numbered, from_networkx
from unified_attn import Graph

KINDS = [networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph]


def rich(kind):
    """Gapped and mixed labels, a loop, edges listed against the order of nodes, attributes of many kinds."""
    graph = kind(title="rich")
    for label, size in (("b", 1), (7, 2), ((1, 2), 3), ("alone", 4)):
        graph.add_node(label, size=size, name=str(label), x=[size / 10, -1.0], flag=size > 2, pair=(size, "q"))
    graph.add_edge((1, 2), "b", weight=0.1, tags=["x", "y"])
    graph.add_edge("b", 7, weight=float("nan"), tags=[])
    graph.add_edge(7, 7, weight=1.0, tags=["z"])
    if graph.is_directed():
        graph.add_edge(7, "b", weight=5.0, tags=None)
    if graph.is_multigraph():
        graph.add_edge("b", 7, weight=3.0, tags=["second"])
        graph.add_edge("b", 7, key="named", weight=4.0, tags=["third"])
        graph.add_edge(7, 7, weight=6.0, tags=["loop"])
    return graph


def contents(graph):
    edges = graph.edges(keys=True, data=True) if graph.is_multigraph() else graph.edges(data=True)
    return (
        type(graph),
        graph.graph,
        repr(list(graph.nodes(data=True))),
        sorted(repr((u, v, key, sorted(row.items()))) for u, v, *key, row in edges),
    )


def test_labels_get_the_order_of_nodes_and_both_directions_the_same_attribute():
    graph = networkx.Graph()
    graph.add_node("b", x=1)
    graph.add_node("a", x=2)
    graph.add_edge("a", "b", weight=0.5)
    numbered = from_networkx(graph)
    assert numbered.nodes == ["b", "a"]
    assert numbered.numbers == {"b": 0, "a": 1}
    assert numbered.node_attributes["x"].tolist() == [1, 2]
    assert numbered.edge_index.tolist() == [[0, 1], [1, 0]]
    assert numbered.edge_attributes["weight"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_again_loses_nothing(kind):
    graph = rich(kind)
    numbered = from_networkx(graph)
    back = numbered.to_networkx()
    assert contents(back) == contents(graph)
    assert torch.equal(from_networkx(back).edge_index, numbered.edge_index)


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_those_of_the_mask(kind):
    graph = rich(kind)
    numbered = from_networkx(graph)
    assert torch.equal(numbered.edge_index, Graph.from_networkx(graph).edge_index)
    assert numbered.graph().num_keys == 4


def test_parallel_edges_and_loops_stay():
    graph = networkx.MultiDiGraph([("a", "b"), ("a", "b"), ("b", "b")])
    numbered = from_networkx(graph)
    assert numbered.edge_index.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert numbered.keys == [0, 1, 0]
    assert from_networkx(networkx.Graph([(0, 0), (0, 1)])).edge_index.tolist() == [[0, 0, 1], [0, 1, 0]]


def test_a_missing_attribute_is_named_or_has_a_default():
    graph = networkx.Graph()
    graph.add_node("b", x=1)
    graph.add_node("a")
    graph.add_edge("b", "a", weight=2.5)
    graph.add_edge("a", "c")
    with pytest.raises(ValueError, match="node 'a' has no attribute 'x'"):
        from_networkx(graph)
    with pytest.raises(ValueError, match=r"edge \('a', 'c'\) has no attribute 'weight'"):
        from_networkx(graph, node_attributes=[])
    with pytest.raises(ValueError, match=r"edge \('b', 'a'\) has no attribute 'kind'"):
        from_networkx(graph, node_attributes=[], edge_attributes=["kind"])
    numbered = from_networkx(graph, defaults={"x": 0, "weight": 1.0})
    assert numbered.node_attributes["x"].tolist() == [1, 0, 0]
    assert numbered.edge_attributes["weight"].tolist() == [2.5, 2.5, 1.0, 1.0]
    with pytest.raises(ValueError, match="defaults holds 'wieght', which no node or edge has"):
        from_networkx(graph, defaults={"x": 0, "weight": 1.0, "wieght": 1.0})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], torch.tensor([1, 2])),
        ([1, 0.1], torch.tensor([1, 0.1], dtype=torch.float64)),
        ([True, False], torch.tensor([True, False])),
        ([[1.0, 2.0], [3.0, 4.0]], torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)),
        ([np.ones(2, np.float32), np.zeros(2, np.float32)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
        ([np.int32(3), np.int32(4)], torch.tensor([3, 4], dtype=torch.int32)),
        ([torch.ones(2), torch.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
    ],
)
def test_numbers_become_tensors(values, expected):
    graph = networkx.Graph()
    graph.add_nodes_from((i, {"x": value}) for i, value in enumerate(values))
    found = from_networkx(graph).node_attributes["x"]
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("values", [["a", "b"], [1, "b"], [[1], [1, 2]], [2**60, 0.5], [2**80, 1], [(1, 2), (3, 4)]])
def test_what_no_tensor_holds_exactly_stays_a_list(values):
    graph = networkx.Graph()
    graph.add_nodes_from((i, {"x": value}) for i, value in enumerate(values))
    assert from_networkx(graph).node_attributes["x"] == values


def test_a_subclass_with_its_own_constructor_is_read_and_comes_back_plain():
    class Road(networkx.Graph):
        def __init__(self, path):
            super().__init__()
            networkx.add_path(self, path)

    back = from_networkx(Road([3, 1, 2])).to_networkx()
    assert type(back) is networkx.Graph
    assert sorted(map(sorted, back.edges)) == [[1, 2], [1, 3]]


@pytest.mark.parametrize(("graph", "kind"), [([1, 2], "list"), (None, "NoneType"), (torch.zeros(2, 2), "Tensor")])
def test_what_networkx_did_not_make_raises(graph, kind):
    with pytest.raises(TypeError, match=f"graph is of type {kind}; give a graph of networkx"):
        from_networkx(graph)


def test_no_nodes_and_no_edges():
    empty = from_networkx(networkx.Graph(), node_attributes=["x"], edge_attributes=["weight"])
    assert empty.edge_index.shape == (2, 0)
    assert len(empty.node_attributes["x"]) == len(empty.edge_attributes["weight"]) == 0
    assert len(empty.to_networkx()) == 0


def test_numbers_made_by_hand_become_a_graph():
    edge_index = torch.tensor([[0, 2, 1, 0], [1, 0, 0, 2]])
    by_hand = Numbered(["x", "y", "z"], edge_index, edge_attributes={"w": torch.tensor([1, 2, 1, 2])}, directed=False)
    graph = by_hand.to_networkx()
    assert {frozenset(ends): w for *ends, w in graph.edges(data="w")} == {frozenset("xy"): 1, frozenset("xz"): 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": torch.tensor([[0], [1]])}, r"edge \('x', 'y'\) has \{\} and \('y', 'x'\) has None"),
        ({"edge_attributes": {"w": [1, 2]}}, r"edge \('x', 'y'\) has \{'w': 1\} and \('y', 'x'\) has \{'w': 2\}"),
        ({"edge_attributes": {"w": [1]}}, "edge attribute 'w' has 1 entries; it must have 2"),
        ({"node_attributes": {"w": [1]}}, "node attribute 'w' has 1 entries; it must have 2"),
        ({"edge_index": torch.tensor([[0, 0], [1, 1]])}, r"edge \('x', 'y'\) is there more than once"),
        ({"edge_index": torch.tensor([[0, 1], [1, 2]])}, r"edge_index\[1\]\[1\] is 2"),
        ({"keys": [0]}, "keys has 1 entries; it must have 2"),
        ({"nodes": ["x", "x"]}, "nodes holds 'x' twice"),
    ],
)
def test_what_is_no_graph_raises(change, message):
    fields = {"nodes": ["x", "y"], "edge_index": torch.tensor([[0, 1], [1, 0]]), "directed": False}
    with pytest.raises(ValueError, match=message):
        Numbered(**fields | change).to_networkx()
