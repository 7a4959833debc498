"""Torch's flex_attention as a back end: forward alone; the rest it declines in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cases.tools import formula, inputs
from tests.parity.cases import Choice, build
from tests.parity.compare import compare_forward
from unified_attn import (
    Additive,
    ALiBi,
    Causal,
    GATv2,
    Graph,
    Padding,
    UnsupportedError,
    Where,
    Window,
    attention,
    explain,
)

CASES = [
    Choice("full", "none", dtype="float32", heads="4/1", sizes="4x7", dims="4/7"),
    Choice("causal", "alibi", "dot softcap", dtype="float32", sizes="4x7"),
    Choice("causal top left", "rope half", sizes="7x5"),
    Choice("window 2 1", "alibi + dense", positions="batch", batch=3, dtype="bfloat16"),
    Choice("padding queries", "own edges [E,H]", "dot sink", batch=3),
    Choice("where", "additive", positions="shared"),
    Choice("dense [B,H,Nq,Nk]", "dense hidden", batch=3),
    Choice("~(window | padding)", "dense [B,1,1,Nk]", dtype="float16"),
    Choice("causal & padding", "none", scale=0.0, sizes="1x6"),
]


@pytest.mark.parametrize("choice", CASES, ids=str)
def test_forward_against_the_oracle(choice: Choice) -> None:
    assert compare_forward(build(choice), "flex") == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "gradients are asked for"),
        ({"dropout_p": 0.1}, "no dropout"),
        ({"score": GATv2(torch.ones(2, 4))}, "is no dot product"),
        ({"mask": Graph(torch.tensor([[0], [1]]))}, "the mask holds a graph"),
        ({"mask": ~Graph(torch.tensor([[0], [1]]))}, "a graph takes part"),
    ],
    ids=["gradients", "dropout", "score", "graph", "graph as a set"],
)
def test_what_it_declines(options: dict[str, Any], reason: str) -> None:
    q, k, v = inputs(4)
    said = explain(q, k, v, **options).reasons["flex"]
    assert any(reason in one for one in said)
    with pytest.raises(UnsupportedError) as error:
        attention(q, k, v, backend="flex", **options)
    assert error.value.reasons == said


def test_a_captured_tensor_with_a_gradient_is_declined() -> None:
    q, k, v = (x.detach() for x in inputs(4))
    slope = torch.ones((), requires_grad=True)
    bias = Additive(lambda b, h, i, j: slope * (i - j))
    with pytest.raises(UnsupportedError, match="gradients are asked for"):
        attention(q, k, v, bias=bias, backend="flex")
    with torch.no_grad():
        torch.testing.assert_close(
            attention(q, k, v, bias=bias, backend="flex"), attention(q, k, v, bias=bias, backend="reference")
        )


@pytest.mark.parametrize("size", [1, 63, 129])
def test_odd_sizes(size: int) -> None:
    q, k, v = (x.detach() for x in inputs(size))
    allowed = torch.arange(size) <= torch.arange(size)[:, None]
    torch.testing.assert_close(attention(q, k, v, mask=Causal(), backend="flex"), formula(q, k, v, allowed))


def test_nothing_is_declined() -> None:
    q, k, v = (x.detach() for x in inputs(0))
    assert "nothing in one of the dimensions" in explain(q, k, v).reasons["flex"][0]


def test_rows_without_a_key_and_masked_content() -> None:
    q, k, v = (x.detach() for x in inputs(5))
    keep = torch.tensor([[True, True, True, True, False]])
    mask = Padding(keep) & Where(lambda b, h, i, j: i != 1) & Window(4, 0)
    clean = attention(q, k, v, mask=mask, bias=ALiBi(2), backend="flex")
    k[:, :, 4] = v[:, :, 4] = torch.nan
    assert torch.equal(attention(q, k, v, mask=mask, bias=ALiBi(2), backend="flex"), clean)
    assert not clean[:, :, 1].any()
