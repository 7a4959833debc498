"""Faults of what came first: causal, windows, graphs, ALiBi, RoPE, tables, edge values, scores and the fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import unified_attn.backends.csr
import unified_attn.biases.edge
import unified_attn.masks.graph
import unified_attn.problem
import unified_attn.scores.gat
import unified_attn.scores.gatv2
from tests.parity.cases import Choice
from tests.parity.faults.tools import change, registry
from unified_attn import ALiBi, DenseBias, Dot, EdgeBias, RoPE, Window
from unified_attn.problem import Lowered, Problem
from unified_attn.scores.base import Score
from unified_attn.vectors import Operands

# A list small enough to run under each fault, and wide enough to find them all.
CASES = [
    Choice("causal", "alibi", sizes="4x7"),
    Choice("window 2 1", "alibi", heads="4/1", sizes="7x5"),
    Choice("causal window 3", "rope half", dtype="float32", sizes="9x63", batch=3),
    Choice("causal", "rope interleaved"),
    Choice("full", "dense hidden"),
    Choice("window 99 99", "dense [B,H,Nq,Nk]", "gat"),
    Choice("padding queries", "own edges [E,H]", "gatv2"),
    Choice("graph", "edge [E]", sizes="4x7"),
    Choice("graph", "pair both", "gatv2", batch=3, scale=0.7),
    Choice("graph & causal", "edge [E,H]", "gat", sizes="7x5"),
    Choice("graph & window", "rope + edge", "dot softcap"),
]

FAULTS, fault = registry()


@fault
def alibi_with_the_other_sign(patch: pytest.MonkeyPatch) -> None:
    change(patch, ALiBi, "add", lambda add: lambda self, *at: -add(self, *at))


@fault
def window_one_more_to_the_left(patch: pytest.MonkeyPatch) -> None:
    change(patch, Window, "__init__", lambda init: lambda self, left, right: init(self, left + 1, right))


@fault
def window_one_more_to_the_right(patch: pytest.MonkeyPatch) -> None:
    change(patch, Window, "__init__", lambda init: lambda self, left, right: init(self, left, right + 1))


@fault
def window_whose_list_is_one_short_to_the_left(patch: pytest.MonkeyPatch) -> None:
    change(patch, Window, "band", lambda band: lambda self: (max(band(self)[0] - 1, 0), band(self)[1]))


@fault
def window_whose_rule_is_one_short_to_the_right(patch: pytest.MonkeyPatch) -> None:
    change(patch, Window, "allow", lambda allow: lambda self, b, h, i, j: allow(self, b, h, i, j + 1))


@fault
def edges_transposed(patch: pytest.MonkeyPatch) -> None:
    def make(ends: Callable) -> Callable:
        def swapped(edge_index: Tensor, queries: int, keys: int) -> tuple[Tensor, Tensor]:
            query, key = ends(edge_index, queries, keys)
            return key.clamp(max=queries - 1), query.clamp(max=keys - 1)

        return swapped

    change(patch, unified_attn.masks.graph, "edge_ends", make)


@fault
def own_edges_of_a_bias_transposed(patch: pytest.MonkeyPatch) -> None:
    change(
        patch, unified_attn.biases.edge, "edge_ends", lambda ends: lambda e, queries, keys: ends(e, queries, keys)[::-1]
    )


@fault
def edge_bias_without_gradient(patch: pytest.MonkeyPatch) -> None:
    change(patch, EdgeBias, "on", lambda on: lambda self, pairs: on(self, pairs).detach())


@fault
def dense_bias_without_gradient(patch: pytest.MonkeyPatch) -> None:
    change(patch, DenseBias, "on", lambda on: lambda self, pairs: on(self, pairs).detach())


@fault
def grouped_heads_tiled(patch: pytest.MonkeyPatch) -> None:
    def make(repeat: Callable) -> Callable:
        def tiled(x: Tensor, times: int, dim: int = -1, **options: Any) -> Tensor:
            return x.repeat(1, times, *[1] * (x.dim() - 2)) if dim == 1 else repeat(x, times, dim, **options)

        return tiled

    change(patch, Tensor, "repeat_interleave", make)


@fault
def grouped_heads_tiled_in_the_fused_kernel(patch: pytest.MonkeyPatch) -> None:
    def make(kernel: Callable) -> Callable:
        def tiled(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
            key, value = (x.repeat(1, query.shape[1] // x.shape[1], 1, 1) for x in (key, value))
            return kernel(
                query, key, value, *rest, **{**options, "key_vectors": Operands(), "value_vectors": Operands()}
            )

        return tiled

    change(patch, unified_attn.backends.csr, "csr_attention", make)


@fault
def rope_layouts_swapped(patch: pytest.MonkeyPatch) -> None:
    other = {"half": "interleaved", "interleaved": "half"}

    def make(rotate: Callable) -> Callable:
        def swapped(self: RoPE, x: Tensor, positions: Tensor, *rest: Tensor) -> Tensor:
            turned = RoPE(self.head_dim, self.base, layout=other[self.layout], rotary_dim=self.rotary_dim)
            return rotate(turned, x, positions + self.start, *rest)

        return swapped

    change(patch, RoPE, "_rotate", make)


@fault
def rope_angles_in_half_precision(patch: pytest.MonkeyPatch) -> None:
    def make(rotate: Callable) -> Callable:
        def rounded(*call: Any) -> Tensor:
            with patch.context() as inner:  # for the library alone: the oracle has cosines too
                for name in ("cos", "sin"):
                    change(inner, Tensor, name, lambda function: lambda x: function(x.to(torch.bfloat16).to(x.dtype)))
                return rotate(*call)

        return rounded

    change(patch, RoPE, "_rotate", make)


@fault
def bias_scaled(patch: pytest.MonkeyPatch) -> None:
    def make(add: Callable) -> Callable:
        def scaled(self: Problem, *rest: Any) -> Tensor | None:
            total = add(self, *rest)
            return total if total is None else total * self.scale

        return scaled

    change(patch, Problem, "_add", make)


@fault
def scale_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dot, "scale", Score.scale)


@fault
def lowest_number_taken_for_a_number(patch: pytest.MonkeyPatch) -> None:
    class Torch:
        """torch, but that no number is so low that it hides."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def finfo(self, dtype: torch.dtype) -> Any:
            return SimpleNamespace(min=-torch.inf)

    patch.setattr(unified_attn.problem, "torch", Torch())


@fault
def key_vectors_after_the_score(patch: pytest.MonkeyPatch) -> None:
    def logits(self: Lowered) -> Tensor:
        late = self.key_vectors
        object.__setattr__(self, "key_vectors", None)
        plain = before(self)
        if late is None:
            return plain
        r = late.at_pairs().repeat_interleave(self.group, dim=1)
        return plain + (self.q.index_select(2, self.pairs.query.flatten()) * r).sum(-1)

    before = Lowered.logits
    patch.setattr(Lowered, "logits", logits)


@fault
def another_slope_of_leaky_relu(patch: pytest.MonkeyPatch) -> None:
    for module in (unified_attn.scores.gat, unified_attn.scores.gatv2):
        change(patch, module, "leaky_relu", lambda leaky: lambda x, slope: leaky(x, slope / 2))


@fault
def another_slope_in_the_fused_kernel(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        unified_attn.backends.csr,
        "csr_attention",
        lambda kernel: lambda *x, **options: kernel(*x, **{**options, "slope": 0.01}),
    )


@fault
def log_sum_exp_in_another_base(patch: pytest.MonkeyPatch) -> None:
    for name in ("csr", "scatter", "reference"):
        backend = unified_attn.backends.BACKENDS[name]
        change(patch, type(backend), "run", lambda run: lambda self, p: (run(self, p)[0], run(self, p)[1] * 1.4427))
