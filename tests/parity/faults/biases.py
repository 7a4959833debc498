"""Faults of learned biases, log priors and RoPE scalings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import unified_attn.biases.path_blocks
import unified_attn.biases.shortest_path
from tests.parity.cases import Choice
from tests.parity.faults.tools import change, registry
from unified_attn import (
    NTK,
    EdgeFeatures,
    EdgeTypes,
    Llama3,
    LogPrior,
    NodeTypes,
    PathFeatures,
    PositionInterpolation,
    RelativeBias,
    RoPE,
    ShortestPath,
    T5Bias,
    YaRN,
)
from unified_attn.biases.base import widened
from unified_attn.biases.node_types import NodeTypeBias
from unified_attn.biases.path_features import PathFeatureBias
from unified_attn.biases.shortest_path import PathLengthBias

CASES = [
    Choice("causal", "t5", sizes="9x63"),
    Choice("window 2 1", "t5 causal + rope llama3"),
    Choice("full", "relative + rope yarn", sizes="9x63"),
    Choice("full", "rope part linear", sizes="4x7"),
    Choice("causal", "rope dynamic", dtype="float32", sizes="9x63"),
    Choice("full", "rope dynamic", sizes="1x6", positions="shared"),
    Choice("padding queries", "node types + rope ntk", batch=3, sizes="7x5"),
    Choice("full", "shortest path", "gatv2", batch=3),
    Choice("graph", "shortest path blocks"),
    Choice("window 2 1", "path features"),
    Choice("full", "log prior", sizes="4x7"),
    Choice("graph", "edge features + edge types", scale=0.7),
    Choice("graph & window", "edge prior [E,H]", dtype="bfloat16"),
]

FAULTS, fault = registry()


@fault
def t5_buckets_one_off(patch: pytest.MonkeyPatch) -> None:
    change(patch, T5Bias, "bucket", lambda bucket: lambda self, distance: (bucket(self, distance) - 1).clamp(min=0))


@fault
def t5_direction_turned(patch: pytest.MonkeyPatch) -> None:
    change(patch, T5Bias, "bucket", lambda bucket: lambda self, distance: bucket(self, -distance))


@fault
def t5_bias_scaled(patch: pytest.MonkeyPatch) -> None:
    change(patch, T5Bias, "add", lambda add: lambda self, *at: add(self, *at) * 0.5)


@fault
def relative_bias_with_the_other_sign_of_distance(patch: pytest.MonkeyPatch) -> None:
    change(patch, RelativeBias, "add", lambda add: lambda self, b, h, i, j, edge: add(self, b, h, j, i, edge))


@fault
def relative_bias_clipped_too_early(patch: pytest.MonkeyPatch) -> None:
    def add(self: RelativeBias, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return widened(self.weight)[h, (j - i).clamp(1 - self.max_distance, self.max_distance) + self.max_distance]

    patch.setattr(RelativeBias, "add", add)


@fault
def learned_tables_without_gradient(patch: pytest.MonkeyPatch) -> None:
    change(patch, T5Bias, "add", lambda add: lambda self, *at: add(self, *at).detach())


@fault
def node_types_of_query_and_key_swapped(patch: pytest.MonkeyPatch) -> None:
    change(patch, NodeTypes, "forward", lambda make: lambda self, q, k: transposed(make(self, q, k)))


def transposed(bias: NodeTypeBias) -> NodeTypeBias:
    """The same with a table whose rows are keys."""
    return NodeTypeBias(bias.weight.transpose(1, 2), bias.query_types, bias.key_types)


@fault
def node_types_of_the_first_sequence_for_all(patch: pytest.MonkeyPatch) -> None:
    def make(forward: Callable) -> Callable:
        return lambda self, q, k: forward(self, q if q.dim() == 1 else q[:1], k if k.dim() == 1 else k[:1])

    change(patch, NodeTypes, "forward", make)


@fault
def edge_types_one_off(patch: pytest.MonkeyPatch) -> None:
    change(patch, EdgeTypes, "forward", lambda make: lambda self, types: make(self, (types + 1) % self.num_types))


@fault
def edge_features_ignored(patch: pytest.MonkeyPatch) -> None:
    change(patch, EdgeFeatures, "forward", lambda make: lambda self, attr: make(self, attr.detach() * 0))


@fault
def lengths_one_off(patch: pytest.MonkeyPatch) -> None:
    def add(self: PathLengthBias, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        batch = b if self.codes.shape[0] != 1 else b * 0
        return widened(self.weight)[(self.codes[batch, i, j] - 1).clamp(min=0), h]

    patch.setattr(PathLengthBias, "add", add)


@fault
def no_path_taken_for_the_greatest_length(patch: pytest.MonkeyPatch) -> None:
    def make(codes: Callable) -> Callable:
        return lambda self, distance: codes(self, distance).clamp(max=self.max_distance)

    change(patch, ShortestPath, "_codes", make)


@fault
def lengths_transposed(patch: pytest.MonkeyPatch) -> None:
    change(patch, PathLengthBias, "add", lambda add: lambda self, b, h, i, j, edge: add(self, b, h, j, i, edge))


@fault
def blocks_read_by_columns(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        unified_attn.biases.shortest_path,
        "flattened",
        lambda flat: lambda name, blocks, form: flat(name, [x.t() for x in blocks], form),
    )


@fault
def blocks_that_see_each_other(patch: pytest.MonkeyPatch) -> None:
    def make(rows: Callable) -> Callable:
        def one_graph(sizes: Tensor, codes: int, nodes: int, name: str) -> tuple[Tensor, Tensor]:
            first, row = rows(sizes, codes, nodes, name)
            return first * 0, (row - first).clamp(min=0)

        return one_graph

    change(patch, unified_attn.biases.path_blocks, "_block_rows", make)


@fault
def path_features_summed_rather_than_averaged(patch: pytest.MonkeyPatch) -> None:
    def add(self: PathFeatureBias, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        products = torch.cat([self.products, self.products.new_zeros(1, *self.products.shape[1:])])
        return sum(
            products[self.paths[b if self.paths.shape[0] != 1 else b * 0, i, j, n], n, h]
            for n in range(self.paths.shape[-1])
        )

    patch.setattr(PathFeatureBias, "add", add)


@fault
def path_features_of_the_path_back(patch: pytest.MonkeyPatch) -> None:
    def back(paths: Tensor) -> Tensor:
        place = (paths >= 0).sum(-1, keepdim=True) - 1 - torch.arange(paths.shape[-1])
        return torch.where(place >= 0, paths.gather(-1, place.clamp(min=0)), -1)

    change(patch, PathFeatures, "forward", lambda make: lambda self, attr, paths: make(self, attr, back(paths)))


@fault
def log_prior_that_hides_nothing(patch: pytest.MonkeyPatch) -> None:
    change(patch, LogPrior, "on", lambda on: lambda self, pairs: on(self, pairs).clamp(min=-14.0))  # log 1e-6


@fault
def log_prior_in_base_two(patch: pytest.MonkeyPatch) -> None:
    change(patch, LogPrior, "on", lambda on: lambda self, pairs: on(self, pairs) * 1.4427)


@fault
def log_prior_without_the_logarithm(patch: pytest.MonkeyPatch) -> None:
    change(patch, LogPrior, "on", lambda on: lambda self, pairs: on(self, pairs).exp())


def scaled(patch: pytest.MonkeyPatch, make: Callable[[RoPE, Tensor], Tensor]) -> None:
    """Other frequencies for the rotation."""

    def changed(rotate: Callable) -> Callable:
        return lambda self, x, positions, frequencies: rotate(self, x, positions, make(self, frequencies))

    change(patch, RoPE, "_rotate", changed)


@fault
def frequencies_in_bfloat16(patch: pytest.MonkeyPatch) -> None:
    scaled(patch, lambda self, frequencies: frequencies.to(torch.bfloat16).double())


@fault
def scaling_ignored(patch: pytest.MonkeyPatch) -> None:
    for kind in (PositionInterpolation, NTK, YaRN, Llama3):
        patch.setattr(kind, "frequencies", unified_attn.biases.RoPEScaling.frequencies)


@fault
def interpolated_twice(patch: pytest.MonkeyPatch) -> None:
    change(
        patch, PositionInterpolation, "frequencies", lambda rates: lambda self, *call: rates(self, *call) / self.factor
    )


@fault
def length_one_short(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        unified_attn.biases.DynamicNTK,
        "frequencies",
        lambda rates: lambda self, size, base, length: rates(self, size, base, length - 1),
    )


@fault
def length_of_the_queries(patch: pytest.MonkeyPatch) -> None:
    def make(turn: Callable) -> Callable:
        def turned(self: RoPE, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor) -> tuple[Tensor, Tensor]:
            return turn(self, q, q, q_at, q_at)[0], turn(self, k, k, k_at, k_at)[1]

        return turned

    change(patch, RoPE, "turn", make)


@fault
def magnitude_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(YaRN, "magnitude", 1.0)


@fault
def magnitude_squared(patch: pytest.MonkeyPatch) -> None:
    magnitude: Any = YaRN.magnitude
    patch.setattr(YaRN, "magnitude", property(lambda self: magnitude.fget(self) ** 2))


@fault
def yarn_ramp_turned(patch: pytest.MonkeyPatch) -> None:
    def turned(rates: Callable) -> Callable:
        def other(self: YaRN, size: int, base: float, length: Tensor) -> Tensor:
            plain = unified_attn.biases.RoPEScaling().frequencies(size, base, length)
            return plain + plain / self.factor - rates(self, size, base, length)

        return other

    change(patch, YaRN, "frequencies", turned)


@fault
def llama3_without_the_blend(patch: pytest.MonkeyPatch) -> None:
    def turned(rates: Callable) -> Callable:
        def other(self: Llama3, size: int, base: float, length: Tensor) -> Tensor:
            plain = unified_attn.biases.RoPEScaling().frequencies(size, base, length)
            return torch.where(rates(self, size, base, length) < plain, plain / self.factor, plain)

        return other

    change(patch, Llama3, "frequencies", turned)
