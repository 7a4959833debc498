"""Faults of vectors added to keys and values: stored, looked up by distance, projected from features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import unified_attn.backends.csr
import unified_attn.kernels.csr
from tests.parity.cases import Choice
from tests.parity.faults.tools import change, registry
from unified_attn import EdgeProjection, PairVectors, RelativeVectors
from unified_attn.biases.base import Bias
from unified_attn.pairs import Pairs
from unified_attn.vectors import Joint, Looked, Operands, Projected, Stored

CASES = [
    Choice("causal", "relative vectors", sizes="4x7"),
    Choice("window 2 1", "relative key", "gatv2", sizes="7x5"),
    Choice("graph & causal", "relative vectors", "gat", batch=3),
    Choice("graph", "projection both", heads="4/1", sizes="7x5"),
    Choice("graph", "projection both", "gatv2", sizes="4x7"),
    Choice("graph & window", "pair + projection", "gat"),
    Choice("graph", "pair + relative", sizes="7x5"),
]

FAULTS, fault = registry()


@fault
def distance_with_the_other_sign(patch: pytest.MonkeyPatch) -> None:
    def make(on: Callable) -> Callable:
        def turned(self: RelativeVectors, pairs: Pairs, dtype: torch.dtype) -> Any:
            flipped = [x and replace(x, code=2 * self.max_distance - x.code) for x in on(self, pairs, dtype)]
            return flipped[0], flipped[1]

        return turned

    change(patch, RelativeVectors, "vectors_on", make)


@fault
def distance_by_row_instead_of_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pairs, "query_position", Pairs.query)
    patch.setattr(Pairs, "key_position", Pairs.key)


@fault
def table_without_gradient(patch: pytest.MonkeyPatch) -> None:
    change(patch, Looked, "__init__", lambda init: lambda self, table, code: init(self, table.detach(), code))


@fault
def tables_of_keys_and_values_swapped(patch: pytest.MonkeyPatch) -> None:
    change(patch, RelativeVectors, "vectors_on", lambda on: lambda self, *at: on(self, *at)[::-1])


@fault
def value_vectors_left_out_of_the_dense_sum(patch: pytest.MonkeyPatch) -> None:
    change(patch, Looked, "mix", lambda mix: lambda self, weights: mix(self, weights) * 0.0)


@fault
def features_without_gradient(patch: pytest.MonkeyPatch) -> None:
    change(patch, Projected, "__init__", lambda init: lambda self, x, weight: init(self, x.detach(), weight))


@fault
def heads_of_a_weight_interleaved(patch: pytest.MonkeyPatch) -> None:
    def make(on: Callable) -> Callable:
        def interleaved(self: EdgeProjection, pairs: Pairs, dtype: torch.dtype) -> Any:
            def mixed_up(x: Projected | None) -> Projected | None:
                if x is None:
                    return None
                heads, size, features = x.weight.shape
                return replace(x, weight=x.weight.reshape(size, heads, features).transpose(0, 1))

            key, value = on(self, pairs, dtype)
            return mixed_up(key), mixed_up(value)

        return interleaved

    change(patch, EdgeProjection, "vectors_on", make)


@fault
def a_weight_read_by_the_wrong_query_heads(patch: pytest.MonkeyPatch) -> None:
    def tiled(weight: Tensor, query: Tensor) -> Tensor:
        return weight.repeat(query.shape[1] // max(weight.shape[0], 1), 1, 1).flip(0)

    patch.setattr(unified_attn.kernels.csr, "_per_query_head", tiled)


@fault
def second_of_two_terms_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Joint, "at_pairs", lambda self: self.first.at_pairs())


@fault
def second_of_two_terms_lost_in_the_fused_kernel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Joint, "operands", lambda self: self.first.operands())


@fault
def codes_ignored_by_the_fused_kernel(patch: pytest.MonkeyPatch) -> None:
    def make(operands: Callable) -> Callable:
        def zeroed(self: Looked) -> Operands:
            found = operands(self)
            return replace(found, code=torch.zeros_like(found.code))

        return zeroed

    change(patch, Looked, "operands", make)


@fault
def stored_vectors_negated(patch: pytest.MonkeyPatch) -> None:
    change(patch, Stored, "__init__", lambda init: lambda self, rows: init(self, -rows))


@fault
def vectors_of_edges_not_added_at_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PairVectors, "vectors", Bias.vectors)


@fault
def fused_projections_not_shared_by_the_score(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        unified_attn.backends.csr,
        "csr_attention",
        lambda kernel: (
            lambda *x, **o: kernel(*x, **{**o, "key_vectors": replace(o["key_vectors"], features=None, weight=None)})
        ),
    )
