"""Linear attention against its formula over all pairs, written here in float64; its memory; one step at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases.tools import fresh, gradients, inputs
from tests.test_memory import PEAK, created, linux
from unified_attn import (
    Causal,
    DenseMask,
    Documents,
    Full,
    Graph,
    LinearState,
    Longformer,
    Padding,
    Where,
    Window,
    attention,
    linear_attention,
)
from unified_attn.kernels.pair_sum import pair_sum


def elu1(x: Tensor) -> Tensor:
    return torch.nn.functional.elu(x) + 1.0


def formula(q: Tensor, k: Tensor, v: Tensor, times: Any = 1.0, phi: Callable[[Tensor], Tensor] = elu1) -> Tensor:
    """All weights in a table, each as often as `times` says: 0, 1, or the number of parallel edges."""
    group = q.shape[1] // k.shape[1]
    weights = torch.einsum("bhid,bhjd->bhij", phi(q), phi(k).repeat_interleave(group, 1)) * times
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhij,bhjd->bhid", weights / torch.where(total == 0, 1.0, total), v.repeat_interleave(group, 1))


def check(got: Tensor, want: Tensor, *leaves: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    for a, b in zip(gradients(got, *leaves), gradients(want, *leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def table(edge_index: Tensor, queries: int, keys: int, seen: Tensor | None = None) -> Tensor:
    """How many edges each pair has, `[..., Nq, Nk]`; of those seen, `[..., E]`."""
    seen = torch.ones(edge_index.shape[1]) if seen is None else seen
    out = torch.zeros(*seen.shape[:-1], queries, keys, dtype=torch.float64)
    for e, (j, i) in enumerate(edge_index.t().tolist()):
        out[..., i, j] += seen[..., e]
    return out


def some_edges(keys: int, queries: int, count: int = 30) -> Tensor:
    """Node 0 is nobody's target, the last is nobody's source, and three edges are parallel."""
    g = torch.Generator().manual_seed(1)
    ends = torch.stack(
        [torch.randint(keys - 1, (count,), generator=g), torch.randint(1, queries, (count,), generator=g)]
    )
    return torch.cat([ends, ends[:, :1], ends[:, :1]], 1)


SIZES = [(5, 5), (1, 1), (63, 63), (64, 64), (130, 130), (4, 150), (1, 70), (150, 4), (0, 3), (3, 0)]
HEADS = pytest.mark.parametrize("kv_heads", [4, 2, 1])


def rules(queries: int, keys: int) -> dict[str, tuple[Any, Tensor]]:
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    at, coin = i + keys - queries, torch.Generator().manual_seed(2)
    keep, real = (torch.rand(2, n, generator=coin) < 0.6 for n in (keys, queries))
    kept = keep[:, None, None] & (i == i)
    both = kept & real[:, None, :, None]
    return {
        "none": (None, (i == i) & (j == j)),
        "full": (Full(), (i == i) & (j == j)),
        "causal": (Causal(), j <= at),
        "top left": (Causal("top_left"), j <= i),
        "padding": (Padding(keep), kept),
        "padding shared": (Padding(keep[:1]), kept[:1]),
        "padding queries": (Padding(keep, queries=real), both),
        "causal & padding": (Causal() & Padding(keep), kept & (j <= at)),
        "padding & causal": (Padding(keep, queries=real) & Full() & Causal(), both & (j <= at)),
        "top left & padding": (Causal("top_left") & Padding(keep), kept & (j <= i)),
        "window": (Window(None, 2), j <= at + 2),
        "window & top left": (Window(None, 2) & Causal("top_left"), (j <= at + 2) & (j <= i)),
        "window listed": (Window(2, 1), (j - at >= -2) & (j - at <= 1)),
    }


@pytest.mark.parametrize("name", rules(1, 1))
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_a_rule_is_the_formula(name: str, queries: int, keys: int) -> None:
    mask, allowed = rules(queries, keys)[name]
    q, k, v = inputs(queries, keys, heads=4, kv_heads=2, dim=3, value_dim=7)
    check(linear_attention(q, k, v, mask=mask), formula(q, k, v, allowed), q, k, v)


@HEADS
@pytest.mark.parametrize("mask", [None, Causal(), Graph(some_edges(9, 9))], ids=repr)
def test_grouped_heads(mask: Any, kv_heads: int) -> None:
    q, k, v = inputs(9, heads=4, kv_heads=kv_heads)
    allowed = {"None": torch.ones(9, 9), "Causal()": torch.ones(9, 9).tril()}.get(
        repr(mask), table(some_edges(9, 9), 9, 9)
    )
    check(linear_attention(q, k, v, mask=mask), formula(q, k, v, allowed), q, k, v)


@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (6, 11), (2, 2)])
@pytest.mark.parametrize("piece", [None, 7])
def test_a_graph_is_the_formula(queries: int, keys: int, piece: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if piece is not None:  # many pieces of a few edges
        monkeypatch.setattr("unified_attn.kernels.pair_sum._PIECE", 1)
        monkeypatch.setattr("unified_attn.kernels.pair_sum._LEAST_PAIRS", piece)
    edges = some_edges(keys, queries)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    g = torch.Generator().manual_seed(3)
    keep, dense = torch.rand(2, keys, generator=g) < 0.6, torch.rand(4, queries, keys, generator=g) < 0.6
    per_head = torch.rand(edges.shape[1], 4, generator=g) < 0.6
    graph = Graph(edges)
    q, k, v = inputs(queries, keys, heads=4, kv_heads=2, dim=3, value_dim=7)
    count = table(edges, queries, keys)
    for mask, times in (
        (graph, count),
        (graph & Causal("top_left"), count * (j <= i)),
        (graph & Window(2, 3), count * ((j - i <= 3) & (j - i >= -2))),
        (Padding(keep) & graph, count * keep[:, None, None]),
        (graph & DenseMask(dense), count * dense),
        (graph.keep(per_head), table(edges, queries, keys, per_head.t())),
        (graph | Window(0, 0), ((count > 0) | (i == j)).double()),
    ):
        check(linear_attention(q, k, v, mask=mask), formula(q, k, v, times), q, k, v)
    empty = linear_attention(q, k, v, mask=graph)[:, :, 0]
    assert bool((empty == 0).all())


def test_node_major_tensors_of_a_graph() -> None:
    edges = some_edges(9, 9)
    x, y, z = (t[0].transpose(0, 1).detach().contiguous().requires_grad_() for t in inputs(9, heads=2, batch=1))
    q, k, v = (t.transpose(0, 1)[None] for t in (x, y, z))
    check(linear_attention(q, k, v, mask=Graph(edges)), formula(q, k, v, table(edges, 9, 9)), x, y, z)


def test_a_graph_without_edges_gives_0() -> None:
    q, k, v = inputs(4)
    out = linear_attention(q, k, v, mask=Graph(torch.zeros(2, 0, dtype=torch.int64)))
    assert bool((out == 0).all())
    assert all(bool((grad == 0).all()) for grad in gradients(out, q, k, v))


@pytest.mark.parametrize("sizes", [(0, 2, 2, 5), (2, 2, 0, 0), (2, 2, 2, 0), (2, 4, 4, 1)], ids=str)
@pytest.mark.parametrize("mask", [None, Causal(), Window(1, 1)], ids=repr)
def test_sizes_of_0_and_1(sizes: tuple[int, int, int, int], mask: Any) -> None:
    batch, heads, kv_heads, tokens = sizes
    kv_heads = max(kv_heads, 1)
    q, k, v = inputs(tokens, batch=batch, heads=heads, kv_heads=kv_heads, dim=1, value_dim=1)
    out = linear_attention(q, k, v, mask=mask)
    assert out.shape == (batch, heads, tokens, 1)
    assert [g.shape for g in torch.autograd.grad(out.sum(), [q, k, v])] == [q.shape, k.shape, v.shape]


def wide(x: Tensor) -> Tensor:
    """More features than channels."""
    return torch.cat([x.relu(), (-x).relu(), torch.ones_like(x[..., :1])], -1)


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 20, dtype=torch.float64).reshape(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).exp()


@pytest.mark.parametrize("phi", [wide, torch.relu, Learned()], ids=["wide", "relu", "learned"])
@pytest.mark.parametrize("name", ["none", "causal", "graph"])
def test_other_feature_maps(phi: Any, name: str) -> None:
    q, k, v = inputs(9, value_dim=3)
    edges = some_edges(9, 9)
    mask, times = (Graph(edges), table(edges, 9, 9)) if name == "graph" else rules(9, 9)[name]
    leaves = [q, k, v, *(phi.parameters() if isinstance(phi, nn.Module) else ())]
    check(linear_attention(q, k, v, mask=mask, feature_map=phi), formula(q, k, v, times, phi), *leaves)


def test_rows_whose_features_are_0_give_0() -> None:
    q, k, v = inputs(4)
    out = linear_attention(-q.abs(), k, v, feature_map=torch.relu)
    assert bool((out == 0).all())
    assert all(bool((grad == 0).all()) for grad in gradients(out, q, k, v))


@pytest.mark.parametrize(
    "mask", [None, Causal(), Causal() & Padding(torch.tensor([[False, True, True]])), Window(1, 0)]
)
def test_gradcheck_twice(mask: Any) -> None:
    q, k, v = inputs(3, batch=1, heads=2, kv_heads=1, dim=2, value_dim=2)
    assert torch.autograd.gradcheck(lambda *x: linear_attention(*x, mask=mask), (q, k, v))
    assert torch.autograd.gradgradcheck(lambda *x: linear_attention(*x, mask=mask), (q, k, v))


def test_the_operator_of_pairs_keeps_torchs_rules() -> None:
    a, b, c = (torch.randn(2, n, d, requires_grad=True) for n, d in ((3, 2), (4, 2), (4, 5)))
    row, col = torch.tensor([0, 2, 2]), torch.tensor([3, 0, 1])
    for seen in (None, torch.tensor([True, False, True]), torch.ones(1, dtype=torch.bool)):
        torch.library.opcheck(pair_sum, (a, b, c, row, col, seen))


# --- conventions


@pytest.mark.parametrize(
    "name", ["padding", "causal & padding", "padding & causal", "top left", "window & top left", "graph"]
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_nobody_attends_may_hold_anything(name: str, bad: float) -> None:
    queries, keys = (9, 9) if name == "graph" else (5, 9)
    edges = some_edges(9, 9)
    mask, times = (Graph(edges), table(edges, 9, 9)) if name == "graph" else rules(queries, keys)[name]
    times = torch.as_tensor(times).expand(2, 4, queries, keys) > 0
    no_key = ~times.any(1).any(1)[:, None, :, None]
    no_query = ~times.any(3)[:, :1, :, None]
    assert bool(no_key.any())
    q, k, v = (x.detach() for x in inputs(queries, keys, heads=4, kv_heads=2))
    spoilt = [q.masked_fill(no_query, bad), k.masked_fill(no_key, bad), v.masked_fill(no_key, bad)]
    clean, spoilt = ([x.clone().requires_grad_() for x in xs] for xs in ([q, k, v], spoilt))
    ours, want = (linear_attention(*x, mask=mask) for x in (spoilt, clean))
    torch.testing.assert_close(ours, want, rtol=0, atol=0)
    for a, b in zip(gradients(ours, *spoilt), gradients(want, *clean), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("mask", [None, Causal(), Window(None, 1)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_nobody_attends_where_there_is_no_key_or_no_query(mask: Any, bad: float) -> None:
    for queries, keys in ((3, 0), (0, 3)):
        q, k, v = (x.detach().fill_(bad).requires_grad_() for x in inputs(queries, keys))
        out = linear_attention(q, k, v, mask=mask)
        for x in (out, *gradients(out, q, k, v)):
            assert not bool(x.any())


def test_any_strides() -> None:
    q, k, v = inputs(70, dim=6, value_dim=6)
    for mask in (None, Causal(), Window(2, 2)):
        want = linear_attention(q, k, v, mask=mask)
        views = [x.detach().permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0).requires_grad_() for x in (q, k, v)]
        assert not views[0].is_contiguous()
        torch.testing.assert_close(linear_attention(*views, mask=mask), want)


@pytest.mark.parametrize(
    ("mask", "dtype"),
    [
        pytest.param(None, torch.float32, marks=pytest.mark.slow),
        (Causal(), torch.float32),
        pytest.param(Causal(), torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(None, torch.float16, marks=pytest.mark.slow),
        pytest.param(Causal(), torch.float64, marks=pytest.mark.slow),
        pytest.param(Window(70, 0), torch.float32, marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_4096_tokens_are_exact_to_the_dtype(mask: Any, dtype: torch.dtype) -> None:
    q, k, v = inputs(4096, batch=1, heads=1, dim=16, dtype=dtype)
    i, j = torch.arange(4096)[:, None], torch.arange(4096)
    allowed = {"None": i == i, "Causal()": j <= i}.get(repr(mask), (j <= i) & (j >= i - 70))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    want, got = formula(*exact, allowed), linear_attention(q, k, v, mask=mask)
    assert got.dtype == dtype
    # Computed in float32: of a half, what is left is the rounding of the output, and of gradients.
    allowed_error = {torch.float64: 1e-13, torch.float32: 2e-6}.get(dtype, torch.finfo(dtype).eps)
    wave = torch.linspace(-1.0, 2.0, want.numel(), dtype=torch.float64).reshape(want.shape).to(dtype)
    grads = torch.autograd.grad((got * wave).sum(), [q, k, v])
    exact_grads = torch.autograd.grad((want * wave.double()).sum(), exact)
    for a, b in ((got, want), *zip(grads, exact_grads, strict=True)):
        assert bool((a.double() - b).abs().max() <= allowed_error * b.abs().max().clamp_min(1.0))


def test_far_negative_features_keep_their_digits() -> None:
    # elu(x) + 1 = exp(x) at -40, which 1 + (exp(-40) - 1) would lose: the weights here are equal.
    q, k, v = torch.zeros(1, 1, 1, 1), torch.full((1, 1, 2, 1), -40.0), torch.tensor([2.0, 4.0]).reshape(1, 1, 2, 1)
    assert linear_attention(q, k, v).item() == pytest.approx(3.0)


@pytest.mark.parametrize("mask", [None, Causal(), Window(1, 1)], ids=repr)
def test_autocast_changes_nothing(mask: Any) -> None:
    q, k, v = inputs(9, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_attention(q, k.bfloat16(), v, mask=mask)
    torch.testing.assert_close(ours, linear_attention(q, k.bfloat16().float(), v, mask=mask), rtol=0, atol=0)


# --- errors


@pytest.mark.parametrize(
    "mask", [~Causal(), Where(lambda b, h, i, j: i != j), Window(1, None), torch.ones(5, 5, dtype=torch.bool)], ids=repr
)
def test_another_mask_is_refused_by_name(mask: Any) -> None:
    name = "DenseMask" if isinstance(mask, Tensor) else repr(mask).split("(")[0]
    with pytest.raises(
        ValueError, match=rf"takes no mask {name}.*: it takes Full, Causal, Window\(None, right\), Padding and"
    ):
        linear_attention(*inputs(5), mask=mask)


@pytest.mark.parametrize(
    "mask",
    [
        Full(), Causal(), Window(None, 1), Window(None, 1) & Padding(torch.ones(2, 5, dtype=torch.bool)), Window(1, 1),
        Graph(torch.tensor([[0, 1], [2, 2]])), Documents(torch.tensor([0, 0, 1, 1, 1])), Longformer(1, [0]),
        Longformer(1, [0]) & Causal(),
    ],
    ids=repr,
)  # fmt: skip
def test_what_the_refusal_names_is_taken(mask: Any) -> None:
    assert linear_attention(*inputs(5), mask=mask).isfinite().all()


def test_inputs_are_checked_as_attention_checks_them() -> None:
    q, k, v = inputs(5)
    for bad in ((q, k[..., :3], v), (q.int(), k, v), (q, k[:, :0], v[:, :0]), (q[0], k, v), (q, k, v[:, :, :4])):
        messages = []
        for call in (attention, linear_attention):
            with pytest.raises((TypeError, ValueError)) as error:
                call(*bad)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
    with pytest.raises(TypeError, match="mask is a str; give a Mask"):
        linear_attention(q, k, v, mask="causal")
    with pytest.raises(ValueError, match="Padding's keep has shape"):
        linear_attention(q, k, v, mask=Padding(torch.ones(2, 4, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("phi", "kind", "message"),
    [
        ("elu", TypeError, "feature_map is a str; give a function"),
        (lambda x: x, ValueError, r"feature_map of q returned -\d.*must not be negative"),
        (lambda x: x > 0, TypeError, "feature_map of q returned .* bool; it must return floats"),
        (lambda x: None, TypeError, "feature_map of q returned NoneType"),
        (lambda x: x.exp().sum(2), ValueError, "feature_map of q returned shape"),
        (lambda x: x.exp()[..., : x.shape[2]], ValueError, "returned 3 features of q but 4 of k; both must be M"),
    ],
)
def test_a_feature_map_is_checked(phi: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        linear_attention(*inputs(3, 5), feature_map=phi)


# --- one step at a time


@pytest.mark.parametrize("cuts", [[1] * 9, [4, 1, 1, 3], [0, 9], [9]])
@pytest.mark.parametrize("padded", [False, True])
def test_steps_are_the_whole(cuts: list[int], padded: bool) -> None:
    q, k, v = inputs(9, heads=4, kv_heads=2, value_dim=3)
    keep = torch.arange(9) >= torch.tensor([[3], [0]]) if padded else None
    state, parts = LinearState(), []
    for x, y, z, n in zip(*(t.split(cuts, 2) for t in (q, k, v)), torch.arange(9).split(cuts), strict=True):
        parts.append(state.step(x, y, z, keep=None if keep is None else keep[:, n]))
    mask = Causal() & Padding(keep) if padded else Causal()
    whole = linear_attention(q, k, v, mask=mask)
    check(torch.cat(parts, 2), whole, q, k, v)
    check(whole, formula(q, k, v, torch.ones(9, 9).tril() * (1.0 if keep is None else keep[:, None, None])), q, k, v)
    assert state.length == 9


def test_a_state_does_not_grow() -> None:
    state = LinearState(wide)
    sizes = set()
    for _ in range(4):
        state.step(*(x.detach() for x in inputs(1, dtype=torch.bfloat16)))
        sizes.add(state.nbytes)
    assert sizes == {2 * 2 * 9 * 5 * 4}  # B, Hkv, M, Dv + 1, in float32
    assert repr(state) == "LinearState(sums=[2, 2, 9, 5], length=4)"


def test_a_state_can_be_reordered_and_reset() -> None:
    q, k, v = (x.detach() for x in inputs(6))
    state = LinearState()
    state.step(q[:, :, :5], k[:, :, :5], v[:, :, :5])
    state.reorder(torch.tensor([1, 1]))
    last = state.step(*(x[[1, 1], :, 5:] for x in (q, k, v)))
    torch.testing.assert_close(last, linear_attention(q, k, v, mask=Causal())[[1, 1], :, 5:])
    with pytest.raises(TypeError, match="index is a list"):
        state.reorder([0, 1])
    for index, words in (([2], "index holds 2 at [0]; it must lie in 0..1"), ([[0]], "index is [1, 1] int64 on cpu")):
        with pytest.raises(ValueError, match=re.escape(words)):
            state.reorder(torch.tensor(index))
    with pytest.raises(ValueError, match=r"index holds -1 at \[1\]"):
        state.reorder(torch.tensor([0, -1]))
    state.reset()
    assert (state.length, state.nbytes, repr(state)) == (0, 0, "LinearState(empty, length=0)")
    state.step(*(x.float() for x in (q, k, v)))


def test_a_step_is_checked() -> None:
    q, k, v = inputs(2)
    state = LinearState()
    with pytest.raises(ValueError, match="q has 1 tokens but k has 2; a step takes the same n"):
        state.step(q[:, :, :1], k, v)
    state.step(q, k, v)
    with pytest.raises(ValueError, match=r"this step has B, Hkv, Dv = \(1, 2, 4\).* had \(2, 2, 4\).*or reset\(\)"):
        state.step(q[:1], k[:1], v[:1])
    with pytest.raises(
        ValueError, match="this step has M = 1 features; the steps before had 4: keep to them, or reset"
    ):
        state.step(q[..., :1], k[..., :1], v)
    with pytest.raises(ValueError, match=r"computed in torch.float32.* had .* torch.float64"):
        state.step(q.float(), k.float(), v.float())
    with pytest.raises(TypeError, match="keep is "):
        state.step(q, k, v, keep=torch.ones(2, 2))
    assert state.length == 2


# --- compiled


@pytest.mark.parametrize(
    "name",
    [
        "graph & causal",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("causal & padding", "none", "top left", "window", "wide features")
        ),
    ],
)
def test_it_compiles_whole(name: str) -> None:
    torch._dynamo.reset()  # what other names compiled of the same code counts
    edges = some_edges(9, 9)

    def call(q: Tensor, k: Tensor, v: Tensor, edge_index: Tensor, keep: Tensor) -> Tensor:
        if name == "wide features":
            return linear_attention(q, k, v, mask=Causal(), feature_map=wide)
        if name == "graph & causal":
            return linear_attention(q, k, v, mask=Graph(edge_index) & Causal())
        mask = {"none": None, "top left": Causal("top_left"), "window": Window(2, 0)}.get(
            name, Causal() & Padding(keep)
        )
        return linear_attention(q, k, v, mask=mask)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (9, 70):
        q, k, v = inputs(tokens, heads=4, kv_heads=2)
        keep = torch.arange(tokens) < torch.tensor([[5], [tokens]])
        # The graph of a compiled call is kept for one backward pass.
        (ours, first), (want, second) = (
            (out, torch.autograd.grad(out.cos().sum(), [q, k, v]))
            for out in (f(q, k, v, edges, keep) for f in (compiled, call))
        )
        torch.testing.assert_close(ours, want, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)


def test_a_step_compiles_whole() -> None:
    def decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state = LinearState()
        return torch.cat([state.step(*x) for x in zip(*(t.split(1, 2) for t in (q, k, v)), strict=True)], 2)

    q, k, v = inputs(3)
    check(torch.compile(decode, fullgraph=True, backend="aot_eager")(q, k, v), decode(q, k, v), q, k, v)


# --- memory

TOKENS = """
def make(n):
    return [torch.randn(1, 1, n, 8, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)]

def step(q, k, v):
    out = linear_attention(q, k, v, mask={mask})
    out.backward(out)

growth(step, make(600), make(32768))
"""

ON_GRAPH = """
def make(n, e):
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(n, 4, 16, generator=g).requires_grad_() for _ in range(3)]
    return (*x, Graph(torch.randint(0, n, (2, e), generator=g), num_keys=n))

def step(q, k, v, graph):
    out = linear_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), mask=graph{rule})
    out.backward(out)

growth(step, make(50, 500), make(20000, 500000))
"""


@linux
@pytest.mark.parametrize("mask", ["None", "Causal()"])
def test_32768_tokens_need_no_table(mask: str) -> None:
    # A table of all pairs in float32 is 4 GiB; the inputs, their features and gradients are 1 MiB each.
    assert int(fresh(PEAK + TOKENS.format(mask=mask))) < 64e6


@linux
@pytest.mark.parametrize("rule", ["", pytest.param(" & Causal()", marks=pytest.mark.slow)])
def test_a_graph_of_500000_edges_needs_less_than_one_message_tensor(rule: str) -> None:
    assert int(fresh(PEAK + ON_GRAPH.format(rule=rule))) < 500_000 * 4 * 16 * 4  # [E, H, C] in float32: 122 MiB


def test_no_operator_makes_a_table_or_a_matrix_a_token() -> None:
    n, d = 499, 11
    q, k, v = (torch.randn(1, 1, n, d, requires_grad=True) for _ in range(3))

    def step() -> None:
        out = linear_attention(q, k, v, mask=Causal())
        out.backward(out)

    sizes = created(step)
    assert max(sizes) < n * d * (d + 1)
    assert max(sizes) < n * n / 4
