"""Faults put into GraphNet on purpose: its tests must find each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import unified_attn.models.graph_block
import unified_attn.models.graph_net
import unified_attn.models.graph_priors
import unified_attn.models.packing
from tests.models import test_graph_net
from tests.parity.faults.tools import change, registry
from unified_attn import EdgeBias, Full
from unified_attn.models import GraphNet
from unified_attn.models.graph_block import GlobalAttention
from unified_attn.models.graph_priors import FirstRows, Inside, VirtualBias
from unified_attn.models.node_encoding import NodeEncoding
from unified_attn.pairs import Pairs

MANY = (4, 1, 6, 3, 4, 2)
CHECKS = (
    test_graph_net.test_a_graphormer_equals_its_formula,
    lambda: test_graph_net.test_packed_graphs_equal_single_ones("graphormer", MANY),
    lambda: test_graph_net.test_packed_graphs_equal_single_ones("graphormer of codes and types", MANY),
    lambda: test_graph_net.test_packed_graphs_equal_single_ones("gps, virtual node, rows of nodes", MANY),
    test_graph_net.test_signs_of_eigenvectors_are_random_in_training_alone_and_repeat_with_the_seed,
    test_graph_net.test_lengths_tell_apart_what_edges_alone_do_not,
    lambda: test_graph_net.test_a_block_sums_torch_geometrics_layer_along_edges_and_attention("gat", "GATConv"),
)

FAULTS, fault = registry()


@fault
def graphs_of_a_batch_see_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unified_attn.models.graph_net, "Documents", lambda ids: Full())


@fault
def virtual_bias_on_its_queries_alone(patch: pytest.MonkeyPatch) -> None:
    def make(on: Callable) -> Callable:
        return lambda self, pairs: on(self, pairs) * (pairs.query >= self.num_nodes)

    change(patch, VirtualBias, "on", make)


@fault
def virtual_node_with_the_lengths_of_the_last_node(patch: pytest.MonkeyPatch) -> None:
    change(patch, FirstRows, "on", lambda on: lambda self, pairs: self.bias.on(inside(self, pairs)))


def inside(bias: FirstRows, pairs: Pairs) -> Inside:
    return Inside(bias._inside(pairs.shape), pairs.q_positions, pairs.k_positions, whole=pairs)


@fault
def bias_of_nodes_shifted_by_virtual_ones(patch: pytest.MonkeyPatch) -> None:
    change(patch, FirstRows, "on", lambda on: lambda self, pairs: on(self, pairs).roll(1, -1))


@fault
def degrees_swapped(patch: pytest.MonkeyPatch) -> None:
    change(patch, NodeEncoding, "forward", lambda go: lambda self, x, edges, *rest: go(self, x, edges[::-1], *rest))


@fault
def signs_shared_by_all_graphs(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        NodeEncoding,
        "forward",
        lambda go: lambda self, x, edges, graph, *rest: go(self, x, edges, graph * 0, *rest),
    )


@fault
def signs_in_evaluation_too(patch: pytest.MonkeyPatch) -> None:
    change(patch, NodeEncoding, "eval", lambda _: lambda self: self.train())
    change(patch, NodeEncoding, "train", lambda train: lambda self, mode=True: train(self, True))


@fault
def edges_of_later_graphs_not_counted_on(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        unified_attn.models.packing,
        "_block",
        lambda block: lambda paths, first, longest: block(paths, 0, longest),
    )


@fault
def edge_bias_turned_round(patch: pytest.MonkeyPatch) -> None:
    def turned(values: Tensor, edge_index: Tensor) -> EdgeBias:
        return EdgeBias(values, edge_index=edge_index.flip(0))

    patch.setattr(unified_attn.models.graph_priors, "EdgeBias", turned)


@fault
def no_bias_in_a_block(patch: pytest.MonkeyPatch) -> None:
    change(patch, GlobalAttention, "forward", lambda go: lambda self, x, mask, bias: go(self, x, mask, None))


@fault
def mean_over_the_whole_batch(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        GraphNet,
        "_pooled",
        lambda pooled: lambda self, h, graph, sizes: pooled(self, h, graph, sizes * 0 + len(graph)),
    )


@fault
def virtual_nodes_in_another_order(patch: pytest.MonkeyPatch) -> None:
    change(patch, GraphNet, "_pooled", lambda pooled: lambda self, *given: pooled(self, *given).flip(0))


@fault
def another_activation_along_edges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unified_attn.models.graph_block, "elu", torch.relu)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    with monkeypatch.context() as patch:
        FAULTS[name](patch)
        for check in CHECKS:
            try:
                check()
            except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
                found.append(error)
                break
    assert found


def test_the_faults_are_gone_again() -> None:
    for check in CHECKS:
        check()
