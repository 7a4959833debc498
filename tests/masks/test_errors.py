"""What a mask is given wrong raises at once, or in the call that it does not fit, naming value and remedy."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from unified_attn import BigBird, Dilated, Documents, GlobalTokens, Longformer, Mask, Window, attention

BOOLS = torch.ones(2, 5, dtype=torch.bool)

MADE = [
    (lambda: Documents([0, 1]), TypeError, "ids is a list; give the document of each token as integers"),
    (lambda: Documents(torch.zeros(3)), TypeError, "ids is [3] float32"),
    (lambda: Documents(BOOLS), TypeError, "ids is [2, 5] bool"),
    (lambda: Documents(torch.tensor(3)), ValueError, "ids has shape []; it must be [N] or [B, N]"),
    (lambda: Documents.from_lengths([2, 3]), TypeError, "lengths is a list"),
    (lambda: Documents.from_lengths(torch.ones(2, 2).long()), ValueError, "lengths has shape [2, 2]; it must be [D]"),
    (lambda: Documents.from_lengths(torch.tensor([2, -1])), ValueError, "lengths holds -1"),
    (lambda: Documents.from_cu_seqlens(torch.tensor([0.0, 2.0])), TypeError, "cu is [2] float32"),
    (lambda: Documents.from_cu_seqlens(torch.zeros(0).long()), ValueError, "cu has shape [0]; it must be [D + 1]"),
    (lambda: Documents.from_cu_seqlens(torch.tensor([1, 2])), ValueError, "cu starts at 1"),
    (lambda: Documents.from_cu_seqlens(torch.tensor([0, 4, 3])), ValueError, "cu falls from 4 to 3 at entry 2"),
    (lambda: GlobalTokens(3), TypeError, "tokens is a int; give the numbers of the global tokens"),
    (lambda: GlobalTokens("03"), TypeError, "tokens is a str"),
    (lambda: GlobalTokens([0.0]), TypeError, "a global token is 0.0; give the numbers"),
    (lambda: GlobalTokens([True, False]), TypeError, "a global token is True"),
    (lambda: GlobalTokens(torch.zeros(2)), TypeError, "tokens is [2] float32"),
    (lambda: GlobalTokens([3, -1]), ValueError, "tokens holds -1; tokens are numbered from 0"),
    (lambda: GlobalTokens(torch.zeros(2, 2).long()), ValueError, "tokens has shape [2, 2]; numbers of tokens"),
    (lambda: GlobalTokens(BOOLS[0]), ValueError, "tokens has shape [5]; a bool tensor must be [B, N]"),
    (lambda: Longformer(1.5, [0]), TypeError, "window is 1.5; give a number of tokens on each side"),
    (lambda: Longformer(-1, [0]), ValueError, "window is -1"),
    (lambda: Longformer(1, [-2]), ValueError, "tokens holds -2"),
    (lambda: BigBird(0, 1, 3, 1, 0), ValueError, "block_size is 0; give an int >= 1"),
    (lambda: BigBird(2, -1, 3, 1, 0), ValueError, "global_blocks is -1"),
    (lambda: BigBird(2, 1, 0, 1, 0), ValueError, "window_blocks is 0"),
    (lambda: BigBird(2, 1, 4, 1, 0), ValueError, "window_blocks is 4; it counts the row's own block"),
    (lambda: BigBird(2, 1, 3, -1, 0), ValueError, "random_blocks is -1"),
    (lambda: BigBird(2, 1, 3, 1, -1), ValueError, "seed is -1"),
    (lambda: BigBird(2, 1, 3, 1, 2**63), ValueError, "seed is 9223372036854775808"),
    (lambda: BigBird(2.0, 1, 3, 1, 0), TypeError, "block_size is 2.0"),
    (lambda: BigBird(2, True, 3, 1, 0), TypeError, "global_blocks is True"),
    (lambda: Dilated(1.0, 2), TypeError, "size is 1.0"),
    (lambda: Dilated(1, None), TypeError, "dilation is None"),
    (lambda: Dilated(-1, 2), ValueError, "size is -1"),
    (lambda: Dilated(2**40, 2**40), ValueError, "is 1208925819614629174706176; it must be below 2 ** 62"),
    (lambda: Dilated(0, 2**62), ValueError, "dilation is 4611686018427387904"),
    (lambda: Dilated(2**62, 1), ValueError, "size is 4611686018427387904"),
    (lambda: Longformer(2**64, [0]), ValueError, "window is 18446744073709551616; it must be below 2 ** 62"),
    (lambda: Window(2**64, 0), ValueError, "left is 18446744073709551616; it must be below 2 ** 62, or None for no"),
    (lambda: Window(0, 2**62), ValueError, "right is 4611686018427387904"),
    (lambda: BigBird(2**64, 1, 3, 1, 0), ValueError, "it must be below 2 ** 62"),
    (lambda: GlobalTokens(torch.tensor([0, 1], dtype=torch.uint8)), TypeError, "tokens is [2] uint8: numbers"),
    (lambda: GlobalTokens(b"ab"), TypeError, "tokens is a bytes"),
    (lambda: Dilated(1, 0), ValueError, "dilation is 0; give a distance >= 1"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "words"), MADE, ids=[words for _, _, words in MADE])
def test_what_cannot_be_made_raises(make: Callable[[], Mask], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        make()


CALLED = [
    (Documents(torch.zeros(4).long()), 5, 5, "have shape [4], but k asks for [5] or [B, Nk] = [2, 5]"),
    (Documents(torch.zeros(3, 5).long()), 5, 5, "have shape [3, 5], but k asks for [5] or [B, Nk] = [2, 5]"),
    (Documents(torch.zeros(5).long()), 7, 5, "q has 7 rows but k has 5"),
    (GlobalTokens([0, 5]), 5, 5, "token 5 is to be global, but k has 5 rows"),
    (GlobalTokens([0]), 6, 5, "q has 6 rows but k has 5"),
    (GlobalTokens(BOOLS), 3, 6, "have shape [2, 5], but k asks for [B, Nk] = [2, 6]"),
    (GlobalTokens(BOOLS[:1].expand(3, 5)), 3, 5, "have shape [3, 5], but k asks for [B, Nk] = [2, 5]"),
    (Longformer(1, [9]), 5, 5, "token 9 is to be global, but k has 5 rows"),
    (Longformer(1, BOOLS), 4, 4, "have shape [2, 5]"),
]


@pytest.mark.parametrize("backend", [None, "reference", "csr"])
@pytest.mark.parametrize(("mask", "queries", "keys", "words"), CALLED, ids=[words for *_, words in CALLED])
def test_what_does_not_fit_a_call_raises(mask: Mask, queries: int, keys: int, words: str, backend: str | None) -> None:
    q, k = torch.zeros(2, 1, queries, 4), torch.zeros(2, 1, keys, 4)
    for one in (mask, mask & Dilated(1, 2), mask | Dilated(1, 2), ~mask):
        with pytest.raises(ValueError, match=re.escape(words)):
            attention(q, k, k, mask=one, backend=backend)


def test_another_device_raises() -> None:
    q = torch.zeros(1, 1, 5, 4, device="meta")
    for mask in (Documents(torch.zeros(5).long()), GlobalTokens(BOOLS[:1])):
        with pytest.raises(ValueError, match="on cpu, but q is on meta; move it"):
            attention(q, q, q, mask=mask)
