"""Raw edge lists are sorted once, and a kept graph is never stale."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.nn.twins import edges_between
from unified_attn import Graph, graph_attention, nn
from unified_attn.nn import graph_cache
from unified_attn.nn.graph_cache import KEPT_GRAPHS, edges_of


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    graph_cache.clear()
    yield
    graph_cache.clear()


def kept(edge_index: Tensor, nodes: int = 5, *, loops: bool = False) -> graph_cache.Edges:
    return edges_of(edge_index, nodes, nodes, loops=loops)


def test_equal_lists_share_a_graph() -> None:
    edge_index = edges_between(5, 5, 9)
    first = kept(edge_index)
    assert kept(edge_index) is first
    assert kept(edge_index.clone()) is first
    assert kept(edge_index.t().contiguous().t()) is first  # other strides
    assert kept(first.mask.graph.edge_index) is first
    assert kept(edge_index, loops=True) is not first
    assert kept(edge_index, loops=True) is kept(edge_index, loops=True)
    assert kept(edge_index, nodes=6) is not first
    assert kept(edge_index.int()) is not first
    assert kept(edge_index[:, :8]) is not first


@pytest.mark.parametrize("how", ["in place", "numpy", ".data"])
@pytest.mark.parametrize("loops", [False, True])
def test_a_change_in_place_is_seen(how: str, loops: bool) -> None:
    array = edges_between(5, 5, 9).numpy()
    edge_index = torch.from_numpy(array)
    before = kept(edge_index, loops=loops).edge_index.clone()
    if how == "in place":
        edge_index[1, 3] = (edge_index[1, 3] + 1) % 5
    elif how == "numpy":
        array[1, 3] = (array[1, 3] + 1) % 5
    else:
        edge_index.data[1, 3] = (edge_index[1, 3] + 1) % 5
    after = kept(edge_index, loops=loops)
    assert torch.equal(after.edge_index[:, :9], edge_index)
    assert not torch.equal(before[:, :9], after.edge_index[:, :9])


def test_another_list_at_the_same_address_is_another_graph() -> None:
    memory = np.zeros((2, 9), dtype=np.int64)
    seen = []
    for seed in range(4):
        memory[:] = edges_between(5, 5, 9, seed=seed).numpy()
        edge_index = torch.from_numpy(memory)
        found = kept(edge_index).mask.graph
        assert found is not None
        assert torch.equal(found.edge_index, edge_index)
        seen.append(found)
    assert len({id(graph) for graph in seen}) == 4


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_small_integers(dtype: torch.dtype) -> None:
    edge_index = edges_between(100, 100, 9).to(dtype)
    found = edges_of(edge_index, 300, 300, loops=True)  # more nodes than the type can count
    assert edges_of(edge_index, 300, 300, loops=True) is found
    assert int(found.edge_index.max()) == 299
    edge_index[0, 0] += 1
    assert edges_of(edge_index, 300, 300, loops=True) is not found


def test_a_kept_graph_does_not_follow_the_callers_tensor() -> None:
    edge_index = edges_between(5, 5, 9)
    before = edge_index.clone()
    found = kept(edge_index)
    edge_index.zero_()
    assert torch.equal(found.edge_index, before)
    assert kept(before) is found


def test_it_is_bounded_and_drops_what_was_not_used_for_longest() -> None:
    lists = [edges_between(5, 5, 9, seed=seed) for seed in range(KEPT_GRAPHS + 1)]
    first, second = kept(lists[0]), kept(lists[1])
    for edge_index in lists[2:KEPT_GRAPHS]:
        kept(edge_index)
    assert kept(lists[0]) is first
    kept(lists[KEPT_GRAPHS])
    assert len(graph_cache._kept) == KEPT_GRAPHS
    assert kept(lists[0]) is first
    assert kept(lists[1]) is not second


def test_a_faulty_list_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="holds 7 at edge 0"):
            kept(torch.tensor([[7], [0]]))
        with pytest.raises(ValueError, match="holds 7 at edge 0"):
            kept(torch.tensor([[7], [0]]), loops=True)
    assert graph_cache._kept == ()


def test_threads() -> None:
    lists = [edges_between(6, 6, 12, seed=seed) for seed in range(2 * KEPT_GRAPHS)]
    wrong: list[int] = []

    def use(start: int) -> None:
        for n in range(200):
            edge_index = lists[(start + 7 * n) % len(lists)]
            if not torch.equal(kept(edge_index, 6).edge_index, edge_index):
                wrong.append(n)

    threads = [threading.Thread(target=use, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(graph_cache._kept) <= KEPT_GRAPHS


def test_a_graph_first_seen_in_inference_mode_trains_later() -> None:
    layer, x = nn.GATConv(3, 4), torch.randn(5, 3)
    with torch.inference_mode():
        edge_index = edges_between(5, 5, 9)
        layer(x, edge_index)
    layer(x, edge_index.clone()).sum().backward()
    assert layer.lin.weight.grad.any()


def test_lists_on_other_devices_are_not_kept() -> None:
    found = kept(torch.zeros(2, 3, dtype=torch.int64, device="meta"))
    assert found.edge_index.shape == (2, 3)
    assert graph_cache._kept == ()


def test_layers_share_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = Graph.__init__

    def counting(self: Graph, *args: object, **sizes: object) -> None:
        made.append(sizes)
        original(self, *args, **sizes)

    monkeypatch.setattr(Graph, "__init__", counting)
    edge_index, x = edges_between(5, 5, 9), torch.randn(5, 4)
    layers = [
        nn.GATConv(4, 4, add_self_loops=False),
        nn.GATv2Conv(4, 4, add_self_loops=False),
        nn.TransformerConv(4, 4),
    ]
    for _ in range(3):
        for layer in layers:
            layer(x, edge_index)
    assert len(made) == 1


def test_a_graph_gives_the_same_as_its_list() -> None:
    edge_index, x = edges_between(5, 5, 9), torch.randn(5, 3)
    graph = Graph(edge_index, num_keys=5)
    for layer in (nn.GATConv(3, 4), nn.GATv2Conv(3, 4, heads=2), nn.TransformerConv(3, 4)):
        assert torch.equal(layer(x, graph), layer(x, edge_index))
    hidden = graph.keep(torch.arange(9) != 4)
    rest = edge_index[:, torch.arange(9) != 4]
    layer = nn.TransformerConv(3, 4)
    torch.testing.assert_close(layer(x, hidden), layer(x, rest))
    assert graph_attention(x[:, None], x[:, None], x[:, None], graph).shape == (5, 1, 3)
