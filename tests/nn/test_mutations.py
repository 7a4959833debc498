"""Planted faults: the comparison with torch-geometric's layers must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.nn.twins import agree, edges_between, features, twins, without_loops
from unified_attn import GAT, Graph
from unified_attn.biases import EdgeProjection
from unified_attn.nn import (
    edge_features,
    edges,
    gat_conv,
    gatv2_conv,
    graph_cache,
    heads,
    hgt_conv,
    linear,
    self_loops,
    transformer_conv,
    typed,
)

DOUBLE = torch.float64
OPTIONS: dict[str, dict[str, Any]] = {
    "GATConv": {"heads": 3, "edge_dim": 2, "residual": True},
    "GATv2Conv": {"heads": 3, "edge_dim": 2, "residual": True},
    "TransformerConv": {"heads": 3, "edge_dim": 2, "beta": True},
    "mean": {"heads": 3, "concat": False, "negative_slope": 0.5},
    "max": {"edge_dim": 2, "fill_value": "max"},
    "add": {"edge_dim": 2, "fill_value": "add"},
}


def compare(name: str) -> None:
    """Raises AssertionError if the layers differ."""
    graph_cache.clear()
    if name == "HGTConv":
        kinds, relations = ["a", "b"], [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a")]
        theirs, mine = twins(name, 8, 8, (kinds, relations), heads=2)
        x = {kind: features(n, 8, dtype=DOUBLE, seed=n) for kind, n in (("a", 5), ("b", 4))}
        lists = {
            r: edges_between(5 if r[0] == "a" else 4, 5 if r[2] == "a" else 4, 9, seed=len(r[1])) for r in relations
        }
        agree(Joined(theirs), Joined(mine), list(x.values()), x, lists)
        return
    theirs, mine = twins("GATConv" if name in ("mean", "max", "add") else name, 5, 4, **OPTIONS[name])
    edge_index = without_loops(edges_between(6, 5, 16))
    x, edge_attr = features(6, 5, dtype=DOUBLE), features(edge_index.shape[1], 2, dtype=DOUBLE, seed=1)
    if mine.edge_dim is None:
        agree(theirs, mine, [x], x, edge_index)
    else:
        agree(theirs, mine, [x, edge_attr], x, edge_index, edge_attr)


class Joined(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: dict[str, Tensor], lists: dict[Any, Tensor]) -> Tensor:
        return torch.cat([out for _, out in sorted(self.layer(x, lists).items())])


def swapped(att_src: Tensor, att_dst: Tensor, slope: float, edge: Tensor | None) -> GAT:
    return GAT(att_dst, att_src, slope, edge=edge)


def fixed_slope(att_src: Tensor, att_dst: Tensor, slope: float, edge: Tensor | None) -> GAT:
    return GAT(att_src, att_dst, 0.2, edge=edge)


def no_edge(att_src: Tensor, att_dst: Tensor, slope: float, edge: Tensor | None) -> GAT:
    return GAT(att_src, att_dst, slope)


def with_turned_loops(edge_index: Tensor, nodes: Tensor) -> Tensor:
    return torch.cat([edge_index, torch.stack([nodes, nodes.flip(0)])], dim=1)


def doubled(*args: Any, **options: Any) -> Tensor:
    return 2.0 * loop_features(*args, **options)


def of_sources(edge_attr: Tensor, edge_index: Tensor, *rest: Any) -> Tensor:
    return loop_features(edge_attr, edge_index.flip(0), *rest)


def key_alone(edge_attr: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> EdgeProjection:
    return EdgeProjection(edge_attr, key=key)


def heads_last(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (-1, count)).transpose(1, 2)


def without_gradient(self: Any, source: Tensor, *rest: Any) -> tuple[Tensor, Tensor, None]:
    k = heads.split_heads(self.lin(source), self.heads)
    return k, k.detach(), None


def by_relation_first(self: Any, relation: int, x: Tensor) -> Tensor:
    return torch.einsum("nhd,hde->nhe", x, self.weight.unflatten(0, (-1, self.num_heads))[relation])


loop_features = self_loops.loop_features
FAULTS: dict[str, tuple[str, Any, str, Any]] = {
    "the ends' vectors swapped": ("GATConv", gat_conv, "GAT", swapped),
    "a fixed slope": ("mean", gat_conv, "GAT", fixed_slope),
    "edge features ignored": ("GATConv", gat_conv, "GAT", no_edge),
    "queries without a gradient": ("GATConv", gat_conv.GATConv, "_project", without_gradient),
    "sum of heads for their mean": (
        "mean", gat_conv, "join_heads", lambda out, concat: out.flatten(1) if concat else out.sum(1)
    ),
    "heads and channels exchanged": ("GATv2Conv", gatv2_conv, "split_heads", heads_last),
    "loops to other nodes": ("GATConv", graph_cache, "with_loops", with_turned_loops),
    "loops at half of the nodes": (
        "GATv2Conv", graph_cache, "looped_nodes", lambda e, keys, n: torch.arange(n) % 2 == 0
    ),
    "features of loops doubled": ("GATConv", edges, "loop_features", doubled),
    "loops take what leaves the node": ("GATv2Conv", edges, "loop_features", of_sources),
    "max taken for min": ("max", self_loops, "REDUCTIONS", {**self_loops.REDUCTIONS, "max": "amin"}),
    "keys and queries exchanged": (
        "GATv2Conv", gatv2_conv, "attend", lambda q, k, v, *rest, **more: heads.attend(k, q, v, *rest, **more)
    ),
    "keys for values": (
        "TransformerConv", transformer_conv, "attend", lambda q, k, v, *r, **more: heads.attend(q, k, k, *r, **more)
    ),
    "features not added to values": ("TransformerConv", edge_features, "EdgeProjection", key_alone),
    "the gate left out": (
        "TransformerConv", transformer_conv.TransformerConv, "_joined", lambda self, out, own: out + own
    ),
    "biases left out": (
        "TransformerConv", linear, "_maps", lambda x, maps: [torch.nn.functional.linear(x, m.weight) for m in maps]
    ),
    "edges turned round": (
        "TransformerConv", graph_cache, "Graph", lambda e, **sizes: Graph(e.flip(0), **sizes)
    ),
    "heads and relations exchanged": ("HGTConv", typed.RelationLinear, "forward", by_relation_first),
    "no activation": ("HGTConv", hgt_conv, "gelu", lambda x: x),
    "the skip left out": (
        "HGTConv", hgt_conv.HGTConv, "_joined", lambda self, kind, m, x: self.out_lin(kind, hgt_conv.gelu(m))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*OPTIONS, "HGTConv"])
def test_without_a_fault_nothing_is_found(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, place, attribute, wrong = FAULTS[fault]
    monkeypatch.setattr(place, attribute, wrong)
    with pytest.raises(AssertionError):
        compare(name)
    graph_cache.clear()


def test_a_stale_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph_cache.clear()
    holds: Callable[..., bool] = lambda self, edge_index, sizes: self.sizes == sizes  # noqa: E731
    monkeypatch.setattr(graph_cache._Kept, "holds", holds)
    graph_cache.edges_of(without_loops(edges_between(6, 5, 16))[:, :-1], 6, 6, loops=False)
    monkeypatch.setattr(graph_cache, "clear", lambda: None)
    with pytest.raises((AssertionError, ValueError)):
        compare("TransformerConv")
    monkeypatch.undo()
    graph_cache.clear()
