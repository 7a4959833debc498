"""What is special to tiles: their edges, no table of all pairs, one table for all tiles of a relative bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import unified_attn.backends.tiled
import unified_attn.strips
from tests.cases.tools import fresh, gradients, inputs
from tests.test_memory import PEAK, created, linux
from unified_attn import (
    Additive,
    ALiBi,
    Bias,
    Causal,
    DenseBias,
    DenseMask,
    Documents,
    Full,
    Graph,
    Mask,
    Padding,
    RelativeBias,
    UnsupportedError,
    Where,
    Window,
    attention,
    attention_with_lse,
    explain,
)
from unified_attn.pairs import Shape

SIZES = [0, 1, 63, 113, 127, 128, 129]


def same(q: Tensor, k: Tensor, v: Tensor, *leaves: Tensor, **options: Any) -> None:
    """Output, lse and gradients of tiles and of the reference."""
    results = []
    for backend in ("tiled", "reference"):
        torch.manual_seed(0)
        out, lse = attention_with_lse(q, k, v, backend=backend, **options)
        finite = lse.masked_fill(lse == -torch.inf, 0.0)
        results.append((out, lse, *gradients(out, q, k, v, *leaves), *gradients(finite, q, k)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [*SIZES, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", [Window(5, 3), Window.causal(50), Window(150, 20), Causal(), Full()], ids=str)
def test_edges_of_tiles(size: int, mask: Mask) -> None:
    q, k, v = inputs(size, batch=1, value_dim=3)
    same(q, k, v, mask=mask)
    same(q, k, v, mask=mask, bias=ALiBi(2))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mask", [Full(), Window(5, 3)], ids=str)
def test_a_learned_bias_in_inference(mask: Mask, mode: Callable[[], Any]) -> None:
    q, k, v = inputs(129)
    bias = RelativeBias(2, 3).double()
    torch.nn.init.normal_(bias.weight, generator=torch.Generator().manual_seed(0))
    want = attention(q, k, v, mask=mask, bias=bias, backend="tiled")
    with mode():
        got = attention(q, k, v, mask=mask, bias=bias, backend="tiled")
    torch.testing.assert_close(got, want.detach(), rtol=0, atol=0)


@pytest.mark.parametrize(("queries", "keys"), [(1, 300), (300, 1), (129, 300), (300, 129), (0, 5), (5, 0)])
@pytest.mark.parametrize("mask", [Window(5, 3), Causal(), Window(4, None)], ids=str)
def test_other_numbers_of_queries_than_keys(queries: int, keys: int, mask: Mask) -> None:
    same(*inputs(queries, keys, heads=4, kv_heads=2), mask=mask, bias=ALiBi(4))


def parity(size: int) -> Where:
    return Where(lambda b, h, i, j: (i + j + h) % 3 == 0)


IDS = {
    "equal documents": torch.arange(300) // 50,
    "other documents": torch.bucketize(torch.arange(300), torch.tensor([40, 41, 160, 230]), right=True),
    "falling ids": 5 - torch.arange(300) // 50,
    "documents that come back": torch.arange(300) // 50 % 2,
    "one each": torch.arange(300),
    "one": torch.zeros(300, dtype=torch.int64),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("with_mask", [None, Causal(), Window(20, 10), Causal() & Window(70, 70)], ids=str)
@pytest.mark.parametrize("bias", [None, ALiBi(2)], ids=str)
@pytest.mark.parametrize("queries", [300, 130])
def test_packed_documents(ids: Tensor, with_mask: Mask | None, bias: Bias | None, queries: int) -> None:
    mask = Documents(ids) if with_mask is None else Documents(ids) & with_mask
    same(*inputs(queries, 300), mask=mask, bias=bias)


TOKENS = torch.arange(150)
LENGTHS = torch.tensor([[150], [150], [97], [0], [1]])
KEPT = {
    "right": TOKENS < LENGTHS,
    "left": TOKENS >= 150 - LENGTHS,
    "both": (TOKENS >= 20) & (TOKENS < LENGTHS),
    "holes": (TOKENS < LENGTHS) & (TOKENS % 7 != 3),
}


def padded(queries: int = 150) -> list[Tensor]:
    q, k, v = (x.detach() for x in inputs(150, batch=5, value_dim=3))
    return [x.requires_grad_() for x in (q[:, :, 150 - queries :], k, v)]


@pytest.mark.parametrize("queries", [150, 90, 1])
@pytest.mark.parametrize("with_mask", [Full(), Causal(), Window(30, 5)], ids=str)
@pytest.mark.parametrize("where", KEPT)
def test_padding(where: str, with_mask: Mask, queries: int) -> None:
    keep = KEPT[where]
    same(*padded(queries), mask=Padding(keep) & with_mask)
    same(*padded(queries), mask=Padding(keep, keep[:, 150 - queries :]) & with_mask)


@pytest.mark.parametrize("where", ["right", "left"])
def test_padding_with_what_needs_a_table(where: str) -> None:
    mask = Padding(KEPT[where])
    for options in ({"bias": ALiBi(2)}, {"dropout_p": 0.3}, {"scale": -0.5}):
        same(*padded(), mask=mask & Causal(), **options)
    grouped = [x.detach().requires_grad_() for x in padded()]
    q, k, v = (torch.cat([grouped[0]] * 2, 1).detach().requires_grad_(), *grouped[1:])
    same(q, k, v, mask=mask)


@pytest.mark.parametrize("with_mask", [Full(), Causal()], ids=str)
def test_padding_may_hold_anything(with_mask: Mask) -> None:
    keep = KEPT["left"]
    mask = Padding(keep, keep) & with_mask
    q, k, v = padded()
    out = attention(q, k, v, mask=mask, backend="tiled")
    wanted = [out, *gradients(out, q, k, v)]
    q, k, v = (x.detach().masked_fill(~keep[:, None, :, None], torch.nan).requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, mask=mask, backend="tiled")
    for a, b in zip([out, *gradients(out, q, k, v)], wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_padding_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def calls_of(mask: Mask) -> list[tuple[int, ...]]:
        return calls(monkeypatch, mask, batch=5, size=150)

    right, left = Padding(KEPT["right"]), Padding(KEPT["left"])
    wanted = [(2, 2, 150, 150, 0), (1, 2, 150, 97, 0), (1, 2, 150, 1, 0)]
    assert calls_of(right) == calls_of(right & Causal()) == wanted
    assert calls_of(left & Causal()) == [(2, 2, 150, 150, 0), (1, 2, 97, 97, 0), (1, 2, 1, 1, 0)]
    assert calls_of(Padding(torch.ones(5, 150) > 0)) == [(5, 2, 150, 150, 0)]


def test_padding_is_left_out_by_default_where_that_pays() -> None:
    for tokens, name in ((300, "tiled"), (200, "sdpa")):
        q = torch.zeros(2, 2, tokens, 4)
        keep = torch.arange(tokens) < torch.tensor([[tokens], [150]])
        for mask in (Padding(keep), Padding(keep) & Causal()):
            assert explain(q, q, q, mask=mask).backend == name
            assert explain(q, q, q, mask=mask, bias=ALiBi(2)).backend == "sdpa"


def test_documents_with_dropout_a_negative_scale_and_as_a_batch_of_one() -> None:
    q, k, v = inputs(300)
    mask = Documents(IDS["other documents"][None]) & Causal()
    same(q, k, v, mask=mask, dropout_p=0.3)
    same(q, k, v, mask=mask, scale=-0.5)


def calls(
    monkeypatch: pytest.MonkeyPatch, mask: Mask, bias: Bias | None = None, batch: int = 1, size: int = 300
) -> list[tuple[int, ...]]:
    """Sizes ``[B * T, H, M, W]``, and whether there was a table, of each call of the kernel."""
    seen = []

    def flash(*x: Any) -> Any:
        seen.append((*x[0].shape[:3], x[1].shape[2], int(x[3] is not None)))
        return kernel(*x)

    kernel = unified_attn.backends.tiled.flash
    with monkeypatch.context() as patch:
        patch.setattr(unified_attn.backends.tiled, "flash", flash)
        attention(*inputs(size, batch=batch), mask=mask, bias=bias, backend="tiled")
    return seen


def test_whole_documents_need_no_table_and_equal_ones_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    equal, other = (Documents(IDS[name]) for name in ("equal documents", "other documents"))
    assert calls(monkeypatch, equal) == [(6, 2, 50, 50, 0)]
    assert calls(monkeypatch, equal & Causal()) == [(6, 2, 50, 50, 0)]
    assert calls(monkeypatch, other) == [*((1, 2, n, n, 0) for n in (40, 1, 119)), (2, 2, 70, 70, 0)]
    assert all(table for *_, table in calls(monkeypatch, equal, ALiBi(2)))


@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (4, 9), (9, 4), (0, 3), (3, 0), (1, 1)])
def test_spans_are_the_mask(queries: int, keys: int) -> None:
    ids = torch.tensor([3, 3, 3, 0, 0, 7, 7, 7, 7])[:keys]
    kept = torch.arange(keys)[None] > 1
    masks: list[Mask] = [Padding(kept), Padding(~kept) & Causal(), Padding(kept, torch.arange(queries)[None] < 2)]
    masks += [Full(), Causal(), Window(2, 1), Window(None, 2), Window(0, None), Window(0, None) & Causal()]
    if queries <= keys:
        masks += [Documents(ids), Documents(ids) & Causal(), Documents(ids[None]) & Window(1, 1)]
    for mask in masks:
        shape = Shape(1, 1, 1, queries, keys, 1, 1, keys - queries, None, torch.device("cpu"))
        spans = mask.spans(shape)
        assert spans is not None
        j = torch.arange(keys)
        runs = (j >= spans.low[0, :, None]) & (j < spans.high[0, :, None])
        table = [[cell == "#" for cell in row] for row in mask.draw(queries, keys).split("\n")][:queries]
        assert runs.tolist() == (table if keys else [[]] * queries)
        assert bool(((spans.low >= 0) & (spans.low <= spans.high) & (spans.high <= keys)).all())


HOLE = Padding(torch.tensor([[True, True, False, True, True, True, False, False, False]]))


@pytest.mark.parametrize("mask", [Causal() | Window(0, 3), HOLE, HOLE & Causal(), ~Causal()], ids=str)
def test_what_is_no_run_of_keys_says_so(mask: Mask) -> None:
    assert mask.spans(Shape(1, 1, 1, 9, 9, 1, 1, 0, None, torch.device("cpu"))) is None


MASKS: dict[str, Callable[[int], Mask]] = {
    "where": parity,
    "causal & padding": lambda n: Causal() & Padding.from_lengths(torch.tensor([n // 2, n]), n),
    "window & padding": lambda n: Window(9, 9) & Padding.from_lengths(torch.tensor([n // 2, n]), n),
    "windows": lambda n: Window(9, 0) | Window(0, 3) & ~Window(1, 1),
    "top left": lambda n: Causal(align="top_left"),
    "far keys": lambda n: Where(lambda b, h, i, j: (j < 3) | (i == j)),
    "graph as a set": lambda n: Graph(torch.tensor([[0, 1, n - 1], [n - 1, 0, 2]])) | Window(0, 1),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_masks_that_are_no_band(name: str, dropout_p: float) -> None:
    q, k, v = inputs(200)
    slope = torch.linspace(0.1, 1, 2, dtype=torch.float64).requires_grad_()
    bias = Additive(lambda b, h, i, j: slope[h] * (i * j).cos())
    same(q, k, v, slope, mask=MASKS[name](200), bias=bias, dropout_p=dropout_p)


class Learned(Bias):
    """A relative bias with a parameter."""

    relative = True

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))
        self.asked = 0

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        self.asked += 1
        return self.slope[h] * (i - j).cos()


def test_tiles_of_a_band_share_the_table_of_a_relative_bias() -> None:
    q, k, v = inputs(1000, batch=2)
    bias = Learned()
    same(q, k, v, bias.slope, mask=Window(10, 10), bias=bias)
    q, k, v = inputs(4000, batch=2)
    bias.asked = 0
    attention(q, k, v, mask=Window(10, 10), bias=bias, backend="tiled")
    few = bias.asked
    bias.asked = 0
    bias.relative = False
    attention(q, k, v, mask=Window(10, 10), bias=bias, backend="tiled")
    assert few <= 6 < 30 < bias.asked


def test_tables_are_cut_and_get_their_gradient_whole() -> None:
    q, k, v = inputs(200)
    table = torch.randn(2, 200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    same(q, k, v, table, mask=Window(20, 20), bias=DenseBias(table))


def test_small_strips_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(500)
    whole = attention(q, k, v, mask=Window(5, 5), backend="tiled")
    monkeypatch.setattr(unified_attn.strips, "ROOM", 1000)
    torch.testing.assert_close(attention(q, k, v, mask=Window(5, 5), backend="tiled"), whole)


def test_a_gradient_at_some_pairs_alone_is_refused() -> None:
    """The tables of later tiles would lose it."""
    slope = torch.ones((), dtype=torch.float64, requires_grad=True)
    bias = Additive(lambda b, h, i, j: (slope if int(i.max()) > 150 else 1.0) * (i - j).double())
    q, k, v = inputs(300)
    with pytest.raises(ValueError, match="has a gradient at some pairs and none at others"):
        attention(q, k, v, mask=Causal(), bias=bias, backend="tiled")


def test_a_second_derivative_names_who_has_one() -> None:
    q, k, v = inputs(50)
    out = attention(q, k, v, mask=Window(3, 3), backend="tiled")
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match=r"no second derivative.*reference.*scatter") as error:
        torch.autograd.grad(dq.sum(), k)
    assert error.value.backend == "tiled"


def test_under_torch_compile_another_one_runs() -> None:
    q, k, v = inputs(700, batch=1, dim=2)
    call = lambda q: attention(q, k, v, mask=Window.causal(150))  # noqa: E731
    assert explain(q, k, v, mask=Window.causal(150)).backend == "tiled"
    torch.testing.assert_close(torch.compile(call, backend="eager", fullgraph=True)(q), call(q))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e300])
def test_what_is_masked_may_hold_anything(poison: float) -> None:
    keep = torch.ones(2, 300, dtype=torch.bool)
    keep[0, 100:] = keep[1, :7] = False
    hidden = ~keep[:, None, :, None]
    for mask in (Padding(keep, queries=keep) & Causal(), Padding(keep, queries=keep) & Window(20, 20)):
        clean = inputs(300)
        dirty = [x.detach().masked_fill(hidden, poison).requires_grad_() for x in clean]
        outs = [attention(*x, mask=mask, backend="tiled") for x in (clean, dirty)]
        assert torch.equal(*outs)
        for a, b in zip(gradients(outs[0], *clean), gradients(outs[1], *dirty), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("bias", [None, ALiBi(2), Additive(lambda b, h, i, j: (i - j).float())], ids=str)
def test_no_tensor_is_as_large_as_the_table(bias: Bias | None) -> None:
    length = 1500
    q, k, v = (x.detach().float().requires_grad_() for x in inputs(length, batch=1))

    def step() -> None:
        out = attention(q, k, v, mask=Window(7, 7), bias=bias, backend="tiled")
        out.backward(out)

    assert max(created(step)) < length * length / 8


IN_WINDOW = """
def make(n):
    return [torch.randn(1, {heads}, n, {dim}).requires_grad_() for _ in range(3)]

def step(q, k, v):
    out = attention(q, k, v, mask=Window.causal(64), bias=ALiBi({heads}), backend="tiled")
    out.backward(out)

growth(step, make(600), make(32768))
"""


@linux
@pytest.mark.parametrize(("heads", "dim", "megabytes"), [(1, 8, 100), pytest.param(8, 64, 200, marks=pytest.mark.slow)])
def test_a_window_over_32768_tokens(heads: int, dim: int, megabytes: int) -> None:
    kept = 4 * 32768 * heads * dim * 4  # the output and three gradients
    growth = int(fresh(PEAK + IN_WINDOW.format(heads=heads, dim=dim)))
    assert growth < megabytes * 1e6 + (kept if heads > 1 else 0)


def test_padding_where_numbers_are_unknown() -> None:
    """By default: a fake tensor gives a fake one, a meta tensor a meta one; a batch of gradients says what to do."""
    x = torch.randn(2, 2, 300, 4, requires_grad=True)
    mask = Padding.from_lengths(torch.tensor([100, 300]))
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(2, 2, 300, 4)
        assert isinstance(attention(fake, fake, fake, mask=mask), FakeTensor)
    meta = torch.empty(1, 2, 300, 4, device="meta")
    graph = Graph(torch.randint(0, 300, (2, 600)), num_keys=300).to("meta")
    for listed in (Window(5, 5), graph):
        assert attention(meta, meta, meta, mask=listed).is_meta
    out = attention(x, x, x, mask=mask)
    with pytest.raises(UnsupportedError, match=r"no batch of gradients at once.*use backend='sdpa'"):
        torch.autograd.grad(out, x, torch.ones(3, *out.shape), is_grads_batched=True)


@pytest.mark.parametrize("kind", ["bias", "mask"])
def test_tables_that_change_before_the_backward_pass_raise(kind: str) -> None:
    """They are made again there; torch says so, as of any tensor that it saved."""
    q = torch.randn(1, 2, 64, 8, requires_grad=True)
    table = torch.randn(2, 64, 64) if kind == "bias" else torch.rand(64, 64) < 0.5
    bias, mask = (DenseBias(table), None) if kind == "bias" else (None, DenseMask(table))
    out = attention(q, q, q, bias=bias, mask=mask, backend="tiled")
    (want,) = torch.autograd.grad(out.sum(), q, retain_graph=True)
    (again,) = torch.autograd.grad(out.sum(), q, retain_graph=True)
    assert torch.equal(want, again)
    table.logical_not_() if kind == "mask" else table.neg_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), q)


def test_a_learned_number_a_head_without_gradients() -> None:
    """What is added is then the parameter itself, which says that it has a gradient."""
    q = torch.randn(1, 2, 64, 8)
    bias = DenseBias(torch.randn(1, 2, 1, 1, requires_grad=True))
    with torch.no_grad():
        torch.testing.assert_close(attention(q, q, q, bias=bias, backend="tiled"), attention(q, q, q))
