"""Graph layers under `torch.compile`, whole and without a compilation a size; and export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tests.nn.twins import close, edges_between, gradients
from unified_attn import nn as ours

SIZES = [(5, 9), (6, 11), (8, 3), (1, 1), (4, 0)]
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GATConv": ("GATConv", {"edge_dim": 2, "heads": 2}),
    "GATv2Conv": ("GATv2Conv", {"edge_dim": 2, "residual": True}),
    "TransformerConv": ("TransformerConv", {"edge_dim": 2, "beta": True}),
    "GATConv, bare": ("GATConv", {"add_self_loops": False}),
    "GATv2Conv, max": ("GATv2Conv", {"edge_dim": 2, "fill_value": "max"}),
}


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def made(name: str) -> nn.Module:
    kind, options = LAYERS[name]
    torch.manual_seed(0)
    layer: nn.Module = getattr(ours, kind)(3, 4, **options)
    return layer


def inputs(layer: Any, nodes: int, count: int) -> tuple[list[Tensor], list[Any]]:
    x, edge_attr = torch.randn(nodes, 3).requires_grad_(), torch.randn(count, 2).requires_grad_()
    edge_index = edges_between(nodes, nodes, count, seed=count)
    edge_index[:, : min(count, 1)] = 0  # a loop that is there, if there is an edge
    return ([x, edge_attr], [x, edge_index, edge_attr]) if layer.edge_dim else ([x], [x, edge_index])


def assert_compiled_is_like(compiled: Any, layer: nn.Module, nodes: int, count: int) -> None:
    leaves, args = inputs(layer, nodes, count)
    found, wanted = compiled(*args), layer(*args)
    close(found, wanted)
    a, b = gradients(layer, found, leaves), gradients(layer, wanted, leaves)
    for key, grad in b.items():
        close(a[key], grad, key)


@pytest.mark.parametrize(
    "name", ["GATConv", *(pytest.param(name, marks=pytest.mark.slow) for name in LAYERS if name != "GATConv")]
)
def test_growing_sizes_compile_once(name: str) -> None:
    """Case 83. 0 and 1 are sizes that torch itself compiles apart."""
    layer = made(name)
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    counts = []
    for nodes, count in SIZES:
        assert_compiled_is_like(compiled, layer, nodes, count)
        counts.append(len(_debug_get_cache_entry_list(type(layer).forward.__code__)))
    assert counts[:3] == [1, 1, 1]
    assert counts[-1] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_inductor(name: str) -> None:
    layer = made(name)
    assert_compiled_is_like(torch.compile(layer, fullgraph=True), layer, 6, 11)


def test_an_index_out_of_range_raises_in_compiled_code() -> None:
    layer = made("GATConv, bare")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(6, 3)
    compiled(x, torch.tensor([[0, 1], [2, 3]]))
    with pytest.raises(ValueError, match=r"row 1 .* holds 9 at edge 1, but there are 6 queries"):
        compiled(x, torch.tensor([[0, 1], [2, 9]]))


@pytest.mark.slow
def test_weights_in_compiled_code_list_a_loop_a_node() -> None:
    layer = made("GATConv")
    _, args = inputs(layer, 6, 11)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    _, (edges, weights) = layer(*args, return_attention_weights=True)
    _, (all_edges, all_weights) = compiled(*args, return_attention_weights=True)
    assert all_edges.shape[1] == 11 + 6
    there = torch.tensor([True] * 11 + [bool((edges[:, 11:] == i).all(0).any()) for i in range(6)])
    assert not there.all()
    assert torch.equal(all_edges[:, there], edges)
    close(all_weights[there], weights)
    assert not all_weights[~there].any()


@pytest.mark.slow
def test_export() -> None:
    """Case 84."""
    layer = made("TransformerConv")
    _, args = inputs(layer, 6, 11)
    exported = torch.export.export(layer, tuple(x.detach() for x in args))
    close(exported.module()(*args), layer(*args))
