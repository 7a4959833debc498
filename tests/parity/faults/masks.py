"""Faults of the masks of packed and long sequences: in their rules, and in the lists that say the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import unified_attn.masks.bigbird
import unified_attn.masks.dilated
import unified_attn.masks.documents
import unified_attn.masks.global_tokens
from tests.parity.cases import Choice
from tests.parity.faults.tools import change, registry
from unified_attn import BigBird, Dilated, Documents, GlobalTokens, Longformer
from unified_attn.masks import Candidates
from unified_attn.pairs import Pairs, Shape

# A list small enough to run under each fault, and wide enough to find them all.
CASES = [
    Choice("documents", sizes="4x7"),
    Choice("documents [B,N]", "alibi", batch=3, sizes="9x63"),
    Choice("documents unsorted & causal", score="gatv2"),
    Choice("global", sizes="4x7"),
    Choice("global [B,N]", batch=3),
    Choice("longformer", "alibi", dtype="float32", sizes="9x63"),
    Choice("longformer [B,N] & padding", batch=3),
    Choice("bigbird", "rope half", sizes="9x63"),
    Choice("bigbird & causal"),
    Choice("dilated", sizes="9x63"),
    Choice("dilated | window", score="gat", sizes="7x5"),
]

FAULTS, fault = registry()

LISTING = tuple(
    getattr(unified_attn.masks, name) for name in ("bigbird", "dilated", "documents", "global_tokens")
)  # modules


def forgotten(patch: pytest.MonkeyPatch) -> None:
    """No list that was made before is found, and none that is made now is kept for later."""
    for module in LISTING:
        if hasattr(module, "KEPT"):
            patch.setattr(module, "KEPT", {})


def lists(patch: pytest.MonkeyPatch, make: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Changes the runs of every list."""

    def changed(list_runs: Callable) -> Callable:
        return lambda start, count, *rest: list_runs(*make(start, count), *rest)

    forgotten(patch)
    for module in LISTING:
        change(patch, module, "list_runs", changed)


@fault
def lists_that_miss_a_pair(patch: pytest.MonkeyPatch) -> None:
    def make(start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        count = count.clone()
        last = count[-1]
        last[last.argmax()] -= last.max().clamp(max=1)
        return start, count

    lists(patch, make)


@fault
def lists_that_name_pairs_twice(patch: pytest.MonkeyPatch) -> None:
    lists(patch, lambda start, count: (start.repeat(1, 2), count.repeat(1, 2)))


@fault
def lists_of_the_row_before(patch: pytest.MonkeyPatch) -> None:
    lists(patch, lambda start, count: (start.roll(1, 0), count.roll(1, 0)))


@fault
def documents_one_off(patch: pytest.MonkeyPatch) -> None:
    change(patch, Documents, "__init__", lambda init: lambda self, ids: init(self, ids.roll(1, -1)))


@fault
def documents_whose_queries_are_the_first_tokens(patch: pytest.MonkeyPatch) -> None:
    def on(self: Documents, pairs: Pairs) -> Tensor:
        ids = self.ids if self.ids.dim() == 2 else self.ids[None]
        queries = ids[:, : pairs.shape.num_queries]
        return pairs.gather(queries[:, None, :, None]) == pairs.gather(ids[:, None, None, :])

    patch.setattr(Documents, "on", on)


@fault
def documents_of_one_sequence_for_the_whole_batch(patch: pytest.MonkeyPatch) -> None:
    change(patch, Documents, "__init__", lambda init: lambda self, ids: init(self, ids[:1] if ids.dim() == 2 else ids))


@fault
def lists_of_the_whole_batch_taken_for_exact(patch: pytest.MonkeyPatch) -> None:
    for mask in (Documents, GlobalTokens, Longformer):

        def make(candidates: Callable) -> Callable:
            def exact(self: Any, shape: Shape) -> Candidates | None:
                found = candidates(self, shape)
                return None if found is None else Candidates(found.pairs)

            return exact

        change(patch, mask, "candidates", make)


@fault
def global_rows_lost(patch: pytest.MonkeyPatch) -> None:
    def on(self: GlobalTokens, pairs: Pairs) -> Tensor:
        return pairs.gather(self._each(pairs.shape)[:, None, None, :])

    patch.setattr(GlobalTokens, "on", on)


@fault
def global_rows_lost_in_the_list(patch: pytest.MonkeyPatch) -> None:
    class Torch:
        """torch, but that no row is everywhere."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def where(self, condition: Tensor, yes: object, no: Tensor) -> Tensor:
            return no

    forgotten(patch)
    patch.setattr(unified_attn.masks.global_tokens, "torch", Torch())


@fault
def longformer_one_more_on_each_side(patch: pytest.MonkeyPatch) -> None:
    change(patch, Longformer, "__init__", lambda init: lambda self, window, tokens: init(self, window + 1, tokens))


@fault
def longformer_whose_list_has_no_window(patch: pytest.MonkeyPatch) -> None:
    change(patch, GlobalTokens, "beside", lambda beside: lambda self, band, shape: beside(self, None, shape))


@fault
def another_random_block(patch: pytest.MonkeyPatch) -> None:
    forgotten(patch)
    change(patch, BigBird, "_draw", lambda draw: lambda self, row, n: draw(self, row, n + 1))


@fault
def a_wrong_block_for_rows_alone(patch: pytest.MonkeyPatch) -> None:
    def make(allow: Callable) -> Callable:
        return lambda self, b, h, i, j: allow(self, b, h, i + self.block_size, j)

    change(patch, BigBird, "allow", make)


@fault
def one_global_block_too_few(patch: pytest.MonkeyPatch) -> None:
    change(patch, BigBird, "__init__", lambda init: lambda self, size, first, *rest: init(self, size, 0, *rest))


@fault
def a_window_of_blocks_one_wider(patch: pytest.MonkeyPatch) -> None:
    def make(init: Callable) -> Callable:
        return lambda self, size, first, near, *rest: init(self, size, first, near + 2, *rest)

    change(patch, BigBird, "__init__", make)


@fault
def dilation_ignored(patch: pytest.MonkeyPatch) -> None:
    change(patch, Dilated, "__init__", lambda init: lambda self, size, dilation: init(self, size * dilation, 1))


@fault
def dilation_ignored_in_the_rule(patch: pytest.MonkeyPatch) -> None:
    def allow(self: Dilated, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.size * self.dilation

    patch.setattr(Dilated, "allow", allow)


@fault
def one_step_of_dilation_too_few(patch: pytest.MonkeyPatch) -> None:
    change(patch, Dilated, "__init__", lambda init: lambda self, size, dilation: init(self, size - 1, dilation))
