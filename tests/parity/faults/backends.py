"""Faults of the back ends over tables: sdpa, tiled and what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import unified_attn.backends.sdpa
import unified_attn.backends.tiled
import unified_attn.kernels.flash
from tests.parity.cases import Choice
from tests.parity.faults.tools import change, registry
from unified_attn.problem import Problem
from unified_attn.tiles import Strip, Tile

# 63 keys and 9 queries are more than one tile only where tiles are low: see `low_tiles`.
CASES = [
    Choice("causal", "none", sizes="4x7"),
    Choice("causal", "alibi", sizes="9x63", batch=3),
    Choice("full", "none", dropout=0.3, sizes="7x5"),
    Choice("causal window 3", "alibi", sizes="9x63", heads="4/1"),
    Choice("window 2 1", "additive", sizes="7x5", batch=3),
    Choice("where", "dense [B,H,Nq,Nk]", sizes="4x7", dims="4/7"),
    Choice("padding queries", "dense hidden", "dot sink"),
    Choice("full", "dense [B,1,1,Nk]", sizes="7x5", batch=3),
]

FAULTS, fault = registry()
Patch = pytest.MonkeyPatch


@fault
def causal_flag_from_the_top_left_whatever_the_sizes(patch: Patch) -> None:
    patch.setattr(
        unified_attn.backends.sdpa, "is_causal", lambda problem: problem.band == (None, 0) and not problem.adds
    )


@fault
def causal_flag_beside_a_bias_that_is_dropped(patch: Patch) -> None:
    patch.setattr(unified_attn.backends.sdpa, "is_causal", lambda problem: problem.band == (None, 0))
    patch.setattr(Problem, "adds", property(lambda self: False))


@fault
def a_band_that_hides_something_taken_for_one_that_does_not(patch: Patch) -> None:
    patch.setattr(Problem, "hides_nothing", property(lambda self: self.band is not None))


@fault
def a_tile_lost(patch: Patch) -> None:
    change(patch, unified_attn.backends.tiled, "strips", lambda make: lambda *x, **y: make(*x, **y)[:-1])


@fault
def keys_of_a_tile_one_short(patch: Patch) -> None:
    def make(strips: Callable) -> Callable:
        return lambda *x, **y: [replace(strip, keys=strip.keys[1:]) for strip in strips(*x, **y) if len(strip.keys) > 1]

    change(patch, unified_attn.backends.tiled, "strips", make)


@fault
def bias_of_a_tile_shifted(patch: Patch) -> None:
    change(patch, Tile, "key_position", lambda at: property(lambda self: at.fget(self) + (self.rows[0] > 0)))
    change(patch, Tile, "gather", lambda gather: lambda self, table: gather(self, table).roll(1, -1))
    low_tiles(patch)


@fault
def gradients_of_shared_keys_overwritten(patch: Patch) -> None:
    def make(add: Callable) -> Callable:
        def overwrite(self: Strip, x: Tensor, part: Tensor) -> None:
            keys = slice(self.keys.start, self.keys.stop) if isinstance(self.keys, range) else self.keys
            x[:, :, keys] = 0.0
            add(self, x, part)

        return overwrite

    change(patch, Strip, "add_keys", make)
    low_tiles(patch)


@fault
def dropout_drawn_by_the_place_in_the_tile(patch: Patch) -> None:
    change(patch, Tile, "query", lambda at: property(lambda self: at.fget(self) + 1))


@fault
def lse_without_the_scale(patch: Patch) -> None:
    for module in (unified_attn.backends.sdpa, unified_attn.backends.tiled):

        def make(flash: Callable) -> Callable:
            def unscaled(q: Tensor, k: Tensor, v: Tensor, add: Any, factors: Any, scale: float, *rest: Any) -> Any:
                return flash(q, k, v, add, factors, scale, *rest)[0], flash(q, k, v, add, factors, 1.0, *rest)[1]

            return unscaled

        change(patch, module, "flash", make)


@fault
def lse_without_its_gradient(patch: Patch) -> None:
    for module in (unified_attn.backends.sdpa, unified_attn.backends.tiled):
        change(patch, module, "flash", lambda flash: lambda *x: (flash(*x)[0], flash(*x)[1].detach()))
    patch.setattr(
        unified_attn.kernels.flash.torch, "cat", lambda x, dim=0, cat=torch.cat: cat([x[0], x[1] * 0, *x[2:]], dim)
    )


@fault
def gradient_of_a_table_not_summed_where_it_broadcasts(patch: Patch) -> None:
    change(patch, Tensor, "sum_to_size", lambda sum_: lambda self, size: self[tuple(slice(n) for n in size)])


@fault
def empty_rows_with_the_lse_of_the_kernel(patch: Patch) -> None:
    patch.setattr(Tensor, "masked_fill_", lambda self, *rest: self)


def low_tiles(patch: Patch) -> None:
    """Tiles of three queries, so that small cases have several."""
    for cut in ("low_cut", "high_cut"):
        change(patch, unified_attn.backends.tiled, cut, lambda made: lambda problem: replace(made(problem), height=3))
