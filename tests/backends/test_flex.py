"""Torch's flex_attention as a back end: forward alone; the rest it declines in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from tests.cases.tools import formula, fresh, inputs
from tests.parity.cases import Choice, build
from tests.parity.compare import compare_forward
from tests.test_memory import PEAK, linux
from unified_attn import (
    Additive,
    ALiBi,
    Causal,
    DenseBias,
    Documents,
    Dot,
    GATv2,
    Graph,
    Padding,
    T5Bias,
    UnsupportedError,
    Where,
    Window,
    attention,
    attention_with_lse,
    explain,
)
from unified_attn.kernels import flex_compiled

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


# --- compiled: from 128 queries and keys on


def lengths_padded(n: int) -> Padding:
    return Padding.from_lengths(torch.tensor([n // 2, n]), n)


STRUCTURES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "causal, ALiBi": lambda n, m: {"mask": Causal(), "bias": ALiBi(4)},
    "window, softcap": lambda n, m: {"mask": Window(40, 3), "score": Dot(softcap=2.0)},
    "documents": lambda n, m: {"mask": Documents(torch.arange(m) // 50)},
    "padding, T5": lambda n, m: {"mask": lengths_padded(m) & Causal(), "bias": T5Bias(4)},
    "table": lambda n, m: {"bias": DenseBias(torch.randn(4, n, m, generator=torch.Generator().manual_seed(7)))},
    "functions": lambda n, m: {
        "mask": Where(lambda b, h, i, j: (i + j) % 3 != 0) & Causal(),
        "bias": Additive(lambda b, h, i, j: -0.1 * (i - j).abs()),
    },
}


def drawn(queries: int, keys: int, kv_heads: int = 4, value_dim: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    options: dict[str, Any] = {"heads": 4, "kv_heads": kv_heads, "dim": 16, "dtype": torch.float32}
    q, k, v = inputs(queries, keys, value_dim=value_dim, **options)
    return q.detach(), k.detach(), v.detach()


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


@torch.no_grad()
def check(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    ours = attention(q, k, v, backend="flex", **options)
    torch.testing.assert_close(ours, attention(q, k, v, backend="reference", **options), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_is_compiled_once_for_all_lengths(name: str) -> None:
    torch._dynamo.reset()
    before = compilations()
    for length in (128, 256, 1000, 1024, 129):
        check(*drawn(length, length), **STRUCTURES[name](length, length))
    assert compilations() - before == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal, ALiBi", "documents"])
def test_more_keys_than_queries_and_grouped_heads(name: str) -> None:
    torch._dynamo.reset()
    before = compilations()
    for queries, keys in ((150, 200), (129, 300), (128, 900), (300, 1000), (1000, 1100)):
        check(*drawn(queries, keys, 2, 24), **STRUCTURES[name](queries, keys))
    assert compilations() - before <= 3  # as many blocks of queries as of keys, or not


@pytest.mark.parametrize("size", [1, 5, 63, 113, 127])
def test_what_is_small_is_not_compiled(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(flex_compiled, "_made")
    check(*drawn(size, 200), mask=Causal(), bias=ALiBi(4))
    check(*drawn(200, size), mask=Causal(), bias=ALiBi(4))


def test_what_asks_for_the_lse_or_is_float64_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(flex_compiled, "_made")
    q, k, v = drawn(130, 130)
    check(q.double(), k.double(), v.double(), mask=Causal())
    both = [attention_with_lse(q, k, v, mask=Causal(), backend=backend) for backend in ("flex", "reference")]
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_compiled_rows_without_a_key_and_masked_content() -> None:
    q, k, v = drawn(300, 300)
    token = torch.arange(300)[None]
    mask = Padding(token > 5, queries=(token != 9) & (token < 130)) & Causal()
    check(q, k, v, mask=mask)
    clean = attention(q, k, v, mask=mask, backend="flex")
    hidden = ~((token > 5) & (token < 130))[:, None, :, None]
    q, k, v = (x.masked_fill(hidden, torch.nan) for x in (q, k, v))
    assert torch.equal(attention(q, k, v, mask=mask, backend="flex"), clean)
    assert not clean[:, :, :6].any()
    assert not clean[:, :, 9].any()


@pytest.mark.slow
def test_more_windows_than_torch_keeps_of_one_function() -> None:
    """A window is a constant of what is compiled: the ninth was refused, or run uncompiled."""
    q, k, v = drawn(130, 130)
    with torch._dynamo.config.patch(recompile_limit=2):
        for left in (3, 4, 5, 6, 7):
            check(q, k, v, mask=Window(left, 0))


IN_WINDOW = """
def make(n):
    q, k, v = (torch.randn(1, 1, n, 8) for _ in range(3))
    v[:, :, 0] = {poison}
    return q, k, v

def step(q, k, v):
    mask = Window(20, 0) & Where(lambda b, h, i, j: j != 0)
    with torch.no_grad():
        assert attention(q, k, v, mask=mask, bias=ALiBi(1), backend="flex").isfinite().all()

growth(step, make(600), make(8192))
"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize("poison", ["0.0", "torch.nan"])
def test_no_table_of_8192_tokens_is_made(poison: str) -> None:
    assert int(fresh(PEAK + IN_WINDOW.format(poison=poison))) < 8192 * 8192 / 4  # a quarter of a bool a pair


def test_the_error_of_a_rule_is_its_own() -> None:
    q, k, v = drawn(130, 130)
    with pytest.raises(TypeError, match="must return a bool tensor"):
        attention(q, k, v, mask=Where(lambda b, h, i, j: i - j), backend="flex")


@pytest.mark.slow
def test_what_torch_cannot_compile_is_said() -> None:
    q, k, v = drawn(130, 130)
    mask = Where(lambda b, h, i, j: torch.isin(j, torch.tensor([0, 3])) | (i == j))
    with pytest.raises(UnsupportedError, match="torch cannot compile the rules"):
        attention(q, k, v, mask=mask, backend="flex")
