"""Faults put into HeteroAttention on purpose: its tests must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import unified_attn.nn.hetero
from tests.nn import test_hetero
from tests.parity.faults.tools import change, registry
from unified_attn.nn import EdgePrior, HeadBias, HeadScale, HeteroAttention
from unified_attn.nn.relation_priors import Constant

CHECKS = (
    lambda: test_hetero.test_equals_a_loop_over_relations_heads_and_edges("node"),
    lambda: test_hetero.test_equals_a_loop_over_relations_heads_and_edges("relation"),
    test_hetero.test_weights_come_by_relation_in_the_order_of_the_edges_before_dropout,
    lambda: test_hetero.test_an_absent_relation_is_an_empty_one_with_gradients_of_zero(
        "node", [test_hetero.CITES, test_hetero.LIKES]
    ),
    lambda: test_hetero.test_hgt_is_a_configuration(8),
    test_hetero.test_relational_gat_is_a_configuration,
)

FAULTS, fault = registry()


@fault
def keys_of_all_relations_begin_at_the_first(patch: pytest.MonkeyPatch) -> None:
    def make(edges_of: Callable) -> Callable:
        def wrapped(edges: Tensor, keys: int, queries: int, **options: Any) -> Any:
            return edges_of(torch.stack([edges[0] % 4, edges[1]]), keys, queries, **options)

        return wrapped

    change(patch, unified_attn.nn.hetero, "edges_of", make)


@fault
def edges_turned_round(patch: pytest.MonkeyPatch) -> None:
    def make(ends_of: Callable) -> Callable:
        def turned(edges: Any, r: Any, sources: int, targets: int, like: Tensor) -> Tensor:
            source, target = ends_of(edges, r, sources, targets, like)
            return torch.stack([target.clamp(max=sources - 1), source.clamp(max=targets - 1)])

        return turned

    change(patch, unified_attn.nn.hetero, "ends_of", make)


@fault
def the_other_softmax(patch: pytest.MonkeyPatch) -> None:
    def make(init: Callable) -> Callable:
        def other(self: HeteroAttention, *arguments: Any, **options: Any) -> None:
            init(self, *arguments, **options)
            self.softmax = "relation" if self.softmax == "node" and not len(self.scores) else self.softmax

        return other

    change(patch, HeteroAttention, "__init__", make)


@fault
def priors_in_the_order_of_other_relations(patch: pytest.MonkeyPatch) -> None:
    def make(bias: Callable) -> Callable:
        def mixed(self: HeteroAttention, priors: list, parts: list, q: Tensor) -> Any:
            found = bias(self, priors, parts, q)
            return found if found is None else type(found)(found.values.flip(0))

        return mixed

    change(patch, HeteroAttention, "_bias", make)


@fault
def no_prior_at_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeteroAttention, "_bias", lambda self, priors, parts, q: None)


@fault
def scale_of_a_relation_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeadScale, "keys", lambda self, k: k)


@fault
def scale_of_another_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeadScale, "keys", lambda self, k: k * self.weight.flip(0)[:, None])


@fault
def number_of_a_relation_with_the_other_sign(patch: pytest.MonkeyPatch) -> None:
    change(patch, Constant, "add", lambda add: lambda self, *at: -add(self, *at))


@fault
def bias_of_a_head_without_gradient(patch: pytest.MonkeyPatch) -> None:
    change(patch, HeadBias, "add", lambda add: lambda self, *at: add(self, *at).detach().clone().requires_grad_())


@fault
def edge_features_of_the_next_edge(patch: pytest.MonkeyPatch) -> None:
    change(patch, EdgePrior, "add", lambda add: lambda self, *at: add(self, *at).roll(1, 0))


@fault
def weights_in_another_order(patch: pytest.MonkeyPatch) -> None:
    def make(attend: Callable) -> Callable:
        def mixed(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            out, weights = attend(*arguments, **options)
            return out, weights if weights is None else weights.flip(0)

        return mixed

    change(patch, unified_attn.nn.hetero, "attend", make)


@fault
def gate_upside_down(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        HeteroAttention,
        "_update",
        lambda update: (
            lambda self, t, out, x: update(self, t, out, x) if self.residual is None else update(self, t, x, out)
        ),
    )


@fault
def value_map_of_keys(patch: pytest.MonkeyPatch) -> None:
    def make(init: Callable) -> Callable:
        def shared(self: HeteroAttention, *arguments: Any, **options: Any) -> None:
            init(self, *arguments, **options)
            self.value_map = self.key_map

        return shared

    change(patch, HeteroAttention, "__init__", make)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    with monkeypatch.context() as patch:
        FAULTS[name](patch)
        for check in CHECKS:
            try:
                check()
            except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
                found.append(error)
                break
    assert found


def test_the_faults_are_gone_again() -> None:
    for check in CHECKS:
        check()
