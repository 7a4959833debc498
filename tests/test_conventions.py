"""The conventions of the library, a test each, with numbers worked out by hand.

How the numbers are read off: with q = 0 and no bias every allowed key weighs alike, and with v the identity a row of
the output is the row of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases.tools import (
    INF,
    ON_EDGES,
    WAYS,
    assert_same,
    close,
    edges,
    formula,
    fresh,
    gradients,
    graph_weights,
    identity,
    inputs,
    run,
    weights,
)
from unified_attn import (
    GAT,
    Additive,
    ALiBi,
    Causal,
    DenseBias,
    DenseMask,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    Mask,
    Padding,
    PairVectors,
    RoPE,
    Where,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
)

every_way = pytest.mark.parametrize("way", WAYS)
on_edges = pytest.mark.parametrize("backend", ON_EDGES)

TRIL = torch.ones(3, 3, dtype=torch.bool).tril()
THIRDS = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]


# --- boolean mask: True = may attend, everywhere


@every_way
@pytest.mark.parametrize(
    "mask",
    [
        TRIL,
        DenseMask(TRIL),
        Causal(),
        Window(None, 0),
        Where(lambda b, h, i, j: j <= i),
        Where(lambda b, h, i, j: TRIL[i, j]),
        ~Where(lambda b, h, i, j: j > i),
        Graph(TRIL.nonzero().t().flip(0)),
    ],
    ids=["tensor", "DenseMask", "Causal", "Window", "Where", "Where, looked up", "~Where", "Graph"],
)
def test_true_means_may_attend(way: str, mask: Mask | Tensor) -> None:
    close(weights(way, 3, 3, mask)[0, 0], THIRDS)


@every_way
def test_true_in_padding_means_a_real_token(way: str) -> None:
    keep = torch.tensor([[True, True, False]])
    close(weights(way, 3, 3, Padding(keep))[0, 0], [[0.5, 0.5, 0.0]] * 3)


@on_edges
def test_true_in_an_edge_mask_means_the_edge_stays(backend: str) -> None:
    graph = Graph(edges((0, 2), (1, 2))).keep(torch.tensor([True, False]))
    zero, v = torch.zeros(1, 1, 3, 4), identity(3)
    close(attention(zero, zero, v, mask=graph, backend=backend)[0, 0, 2], [1.0, 0.0, 0.0, 0.0])


# --- a float or integer tensor as mask raises, and the message spells both correct forms


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_of_numbers_raises_and_spells_both_forms(dtype: torch.dtype) -> None:
    q = torch.zeros(1, 1, 3, 4)
    with pytest.raises(TypeError, match=r"bias=DenseBias\(mask\); .* a bool tensor, True = may attend"):
        attention(q, q, q, mask=TRIL.to(dtype))


# --- a row with no allowed key: output 0, weights 0, gradients 0, lse -inf, never NaN

NOTHING: list[tuple[str, dict[str, Any]]] = [
    ("mask", {"mask": Where(lambda b, h, i, j: i != 1)}),
    ("tensor", {"mask": torch.tensor([True, False, True])[:, None]}),
    ("padded query", {"mask": Padding(torch.ones(1, 3, dtype=torch.bool), torch.tensor([[True, False, True]]))}),
    ("bias", {"bias": DenseBias(torch.tensor([0.0, -INF, 0.0])[:, None])}),
    ("mask and bias", {"mask": Where(lambda b, h, i, j: (i != 1) | (j == 0)), "bias": DenseBias(
        torch.tensor([[0.0, 0.0, 0.0], [-INF, 0.0, 0.0], [0.0, 0.0, 0.0]]))}),
]  # fmt: skip


@every_way
@pytest.mark.parametrize("what", [w for _, w in NOTHING], ids=[name for name, _ in NOTHING])
def test_a_row_with_no_allowed_key_is_zero_and_so_are_its_gradients(way: str, what: dict[str, Any]) -> None:
    q, k, v = inputs(3, dtype=torch.float32)
    out = run(way, q, k, v, **what)
    assert torch.equal(out[:, :, 1], torch.zeros_like(out[:, :, 1]))
    dq, dk, dv = gradients(out, q, k, v)
    assert torch.equal(dq[:, :, 1], torch.zeros_like(dq[:, :, 1]))
    assert_same(out[:, :, [0, 2]], formula(q, k, v)[:, :, [0, 2]], q, k, v)
    assert all(bool(g.isfinite().all()) and bool(g.any()) for g in (dq, dk, dv))


@on_edges
def test_a_node_without_an_edge_has_output_0_and_lse_minus_infinity(backend: str) -> None:
    q, k, v = inputs(3, dtype=torch.float32)
    out, lse = attention_with_lse(q, k, v, mask=Graph(edges((0, 1), (2, 1))), backend=backend)
    assert torch.equal(out[:, :, [0, 2]], torch.zeros_like(out[:, :, [0, 2]]))
    assert torch.equal(lse.isneginf()[0, 0], torch.tensor([True, False, True]))
    for gradient in torch.autograd.grad(out.sum() + lse[:, :, 1].sum(), (q, k, v)):
        assert bool(gradient.isfinite().all())


def test_weights_of_a_row_with_no_allowed_key_are_0() -> None:
    q = torch.zeros(1, 1, 2, 4)
    assert torch.equal(
        attention_weights(q, q, mask=torch.tensor([[False], [True]]))[0, 0], torch.tensor([[0.0, 0.0], [0.5, 0.5]])
    )
    graph = Graph(edges((0, 1), (1, 1), (0, 0))).keep(torch.tensor([True, True, False]))
    assert torch.equal(attention_weights(q, q, mask=graph)[0, 0], torch.tensor([0.5, 0.5, 0.0]))


# --- masked content can be NaN or inf: outputs and gradients are those of the clean run


@every_way
@pytest.mark.parametrize("poison", [float("nan"), INF, -INF])
@pytest.mark.parametrize("score", [Dot(), Dot(softcap=5.0), "gat", "gatv2"], ids=["dot", "softcap", "gat", "gatv2"])
def test_a_hidden_key_can_hold_anything(way: str, poison: float, score: Any) -> None:
    vectors = torch.linspace(-1, 1, 8).reshape(2, 4)
    score = {"gat": GAT(vectors, vectors.flip(0)), "gatv2": GATv2(vectors)}.get(score, score)
    mask = Padding(torch.tensor([[True, True, False], [True, True, False]]))
    clean = inputs(3, heads=2, kv_heads=1, dtype=torch.float32)
    dirty = [x.detach().clone() for x in clean]
    dirty[1][:, :, 2], dirty[2][:, :, 2] = poison, poison
    for x in dirty:
        x.requires_grad_()
    a, b = (run(way, *x, mask, score=score) for x in (clean, dirty))
    assert torch.equal(a, b)
    for left, right in zip(gradients(a, *clean), gradients(b, *dirty), strict=True):
        assert torch.equal(left, right)


# --- a bias of -inf is the same as masked; so is a term at or below the lowest finite value of its own dtype

LOWEST = [-INF, torch.finfo(torch.float32).min]


@every_way
@pytest.mark.parametrize("low", LOWEST)
def test_a_bias_at_the_lowest_value_masks(way: str, low: float) -> None:
    q, k, v = inputs(3, dtype=torch.float32)
    table = torch.zeros(3, 3).masked_fill(~TRIL, low)
    assert_same(run(way, q, k, v, bias=DenseBias(table)), run(way, q, k, v, TRIL), q, k, v)


@every_way
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_each_term_is_held_against_its_own_dtype(way: str, dtype: torch.dtype) -> None:
    table = torch.tensor([0.0, torch.finfo(dtype).min], dtype=dtype)
    close(weights(way, 1, 2, bias=DenseBias(table))[0, 0], [1.0, 0.0], atol=0)


@every_way
def test_terms_are_tested_before_they_are_summed(way: str) -> None:
    lowest = torch.finfo(torch.float16).min  # hides in float16, is a number in float32, and must survive a sum
    hides = DenseBias(torch.tensor([0.0, lowest], dtype=torch.float16))
    lifts = DenseBias(torch.tensor([0.0, 70000.0]))
    close(weights(way, 1, 2, bias=hides + lifts)[0, 0], [1.0, 0.0], atol=0)
    halves = DenseBias(torch.tensor([0.0, -3e38])) + DenseBias(
        torch.tensor([0.0, -3e38])
    )  # each a number, -inf together
    close(weights(way, 1, 2, bias=halves)[0, 0], [1.0, 0.0], atol=0)


@on_edges
@pytest.mark.parametrize("low", LOWEST)
def test_an_edge_bias_at_the_lowest_value_hides_the_edge(backend: str, low: float) -> None:
    rows = graph_weights(backend, edges((0, 2), (1, 2), (0, 1)), 3, bias=EdgeBias(torch.tensor([0.0, low, low])))
    close(rows, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], atol=0)


# --- positions: keys 0..Nk-1, queries the last Nq of them; with a Graph both from 0


@every_way
def test_one_query_is_the_last_token(way: str) -> None:
    close(weights(way, 1, 5, Causal())[0, 0], [[0.2] * 5])


def test_queries_are_the_last_positions_of_masks_and_biases() -> None:
    close(weights("reference", 2, 4, Window(1, 0))[0, 0], [[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.5, 0.5]])
    near = Additive(lambda b, h, i, j: torch.where(i == j, 0.0, -INF))
    close(weights("reference", 2, 4, bias=near)[0, 0], [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])


@on_edges
def test_with_a_graph_both_sides_count_from_0(backend: str) -> None:
    q, kv = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4, 4)
    every = Graph(torch.tensor([[0, 1, 2, 3] * 2, [0] * 4 + [1] * 4]))
    out = attention(q, kv, identity(4), mask=every & Causal(), backend=backend)
    close(out[0, 0], [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])


@every_way
def test_given_positions_are_what_rules_compare(way: str) -> None:
    at = {"q_positions": torch.tensor([7, 2]), "k_positions": torch.tensor([2, 9, 7])}
    close(weights(way, 2, 3, Causal(), **at)[0, 0], [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    each = {"q_positions": torch.tensor([[0], [1]]), "k_positions": torch.tensor([[0, 1], [1, 2]])}
    close(weights(way, 1, 2, Causal(), batch=2, **each)[:, 0, 0], [[1.0, 0.0], [1.0, 0.0]])


# --- Window(left, right): -left <= j - i <= right; None = unlimited; causal(W) = W keys counting the query's own


@every_way
def test_a_window_counts_left_and_right_apart(way: str) -> None:
    third = 1 / 3
    close(weights(way, 4, 4, Window(1, 0))[0, 0], [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]])
    close(weights(way, 4, 4, Window(0, 1))[0, 0], [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 1]])
    close(weights(way, 4, 4, Window(2, None))[0, 0][3], [0, third, third, third])
    close(weights(way, 4, 4, Window(None, 1))[0, 0][1], [third, third, third, 0])
    close(weights(way, 4, 4, Window(None, None))[0, 0], [[0.25] * 4] * 4)


@every_way
def test_a_causal_window_of_size_2_holds_2_keys(way: str) -> None:
    close(weights(way, 4, 4, Window.causal(2))[0, 0][3], [0.0, 0.0, 0.5, 0.5])


@pytest.mark.parametrize("backend", ["scatter", "csr"])
def test_a_window_lists_its_own_pairs(backend: str) -> None:
    zero, v = torch.zeros(1, 1, 2, 4), identity(4)
    out = attention(zero, torch.zeros(1, 1, 4, 4), v, mask=Window(1, 0), backend=backend)
    close(out[0, 0], [[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.5, 0.5]])


def test_a_negative_side_of_a_window_raises() -> None:
    with pytest.raises(ValueError, match="left is -3"):
        Window(-3, 0)


# --- several masks are always AND, in any order


@every_way
def test_masks_are_joined_by_and_in_any_order(way: str) -> None:
    a, b, c = Causal(), Where(lambda b, h, i, j: j != 0), Window(1, None)
    rows = [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
    for mask in (a & b & c, c & b & a, b & (a & c), (c & a) & b):
        close(weights(way, 4, 4, mask)[0, 0], rows)


# --- scale: None = the score's own; before additive biases, which are never scaled; 0 and 1 are honoured


@every_way
def test_the_scale_touches_scores_and_never_biases(way: str) -> None:
    # Two keys, D = 4, with q.k = 4 and 0, and a bias of 1 on the first: logits 4 * scale + 1 and 0.
    q, k, v = torch.ones(1, 1, 1, 4), torch.tensor([[1.0] * 4, [0.0] * 4])[None, None], identity(2)
    bias = DenseBias(torch.tensor([1.0, 0.0]))
    for scale, logit in ((None, 3.0), (1.0, 5.0), (0.0, 1.0), (-1.0, -3.0), (2, 9.0)):
        first = torch.sigmoid(torch.tensor(logit))
        close(run(way, q, k, v, bias=bias, scale=scale)[0, 0, 0, :2], torch.stack([first, 1 - first]), atol=1e-6)


@on_edges
def test_gat_and_gatv2_are_not_scaled_by_default(backend: str) -> None:
    q = k = torch.ones(1, 1, 2, 4)
    graph = Graph(edges((0, 0), (1, 1)))
    ones = torch.ones(1, 4)
    for score, logit in ((GAT(ones, ones), 8.0), (GATv2(ones), 8.0), (Dot(), 2.0)):
        _, lse = attention_with_lse(q, k, k, mask=graph, score=score, backend=backend)
        close(lse, logit)
        _, lse = attention_with_lse(q, k, k, mask=graph, score=score, scale=0.25, backend=backend)
        close(lse, logit / 4 if logit == 8.0 else 1.0)


# --- edge_index: row 0 = source = key j, row 1 = target = query i; softmax over the incoming edges of i


@on_edges
def test_edges_run_from_sources_to_targets(backend: str) -> None:
    rows = graph_weights(backend, edges((0, 2), (1, 2)), 3)
    close(rows, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0]])


@on_edges
def test_the_jacobian_is_the_adjacency(backend: str) -> None:
    edge_index = edges((0, 1), (3, 1), (2, 2), (1, 3), (0, 3))
    q, k, v = inputs(4, batch=1, heads=1)

    def outputs(values: Tensor) -> Tensor:
        return attention(q, k, values, mask=Graph(edge_index), backend=backend)[0, 0, :, 0]

    jacobian = torch.autograd.functional.jacobian(outputs, v)[:, 0, 0, :, 0]
    adjacency = torch.zeros(4, 4, dtype=torch.bool)
    adjacency[edge_index[1], edge_index[0]] = True
    assert torch.equal(jacobian != 0, adjacency)


# --- sizes come from q and k; an index out of range raises naming row, value and size


@on_edges
def test_sizes_come_from_q_and_k_and_not_from_the_largest_index(backend: str) -> None:
    out = attention(
        torch.zeros(1, 1, 5, 4),
        torch.zeros(1, 1, 3, 4),
        torch.ones(1, 1, 3, 4),
        mask=Graph(edges((1, 0))),
        backend=backend,
    )
    assert out.shape == (1, 1, 5, 4)
    assert out[0, 0, :, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ((9, 0), r"row 0 \(source = key\) holds 9 .* 5 keys"),
        ((0, -1), r"row 1 \(target = query\) holds -1 .* 5 queries"),
    ],
)
def test_an_index_out_of_range_names_row_value_and_size(pair: tuple[int, int], text: str) -> None:
    q = torch.zeros(1, 1, 5, 4)
    with pytest.raises(ValueError, match=text):
        attention(q, q, q, mask=Graph(edges(pair)))


# --- parallel edges: each its own key, so m of them = bias + log m


@on_edges
def test_parallel_edges_are_keys_of_their_own(backend: str) -> None:
    close(graph_weights(backend, edges((0, 2), (0, 2), (1, 2)), 3)[2], [2 / 3, 1 / 3, 0.0])
    logs = EdgeBias(torch.tensor([2.0, 1.0]).log())
    close(graph_weights(backend, edges((0, 2), (1, 2)), 3, bias=logs)[2], [2 / 3, 1 / 3, 0.0])


# --- self-loops are never added, dropped or moved by the operator


@on_edges
def test_self_loops_are_the_callers(backend: str) -> None:
    without = graph_weights(backend, edges((0, 1)), 2)
    close(without, [[0.0, 0.0], [1.0, 0.0]])
    bias = EdgeBias(torch.tensor([3.0]).log().repeat(2) * torch.tensor([0.0, 1.0]))
    close(graph_weights(backend, edges((0, 1), (1, 1)), 2, bias=bias), [[0.0, 0.0], [0.25, 0.75]])


# --- weights: before dropout, in the caller's edge order, 0 where another mask hides the edge


def test_weights_are_in_the_callers_edge_order_and_0_where_hidden() -> None:
    q = torch.zeros(1, 1, 3, 4)
    edge_index = edges((2, 1), (0, 2), (0, 1), (1, 1), (1, 2))
    bias = EdgeBias(torch.tensor([1.0, 1.0, 2.0, 3.0, 4.0]).log())
    close(attention_weights(q, q, mask=Graph(edge_index), bias=bias)[0, 0], [1 / 6, 1 / 5, 2 / 6, 3 / 6, 4 / 5])
    close(attention_weights(q, q, mask=Causal() & Graph(edge_index), bias=bias)[0, 0], [0, 1 / 5, 2 / 5, 3 / 5, 4 / 5])


# --- float64: every back end computes in it


@every_way
@pytest.mark.parametrize("mask", [None, Causal(), Window(2, 1)], ids=str)
def test_float64_is_computed_in_float64(way: str, mask: Mask | None) -> None:
    q, k, v = inputs(6)
    bias = ALiBi(2) + RoPE(4) if mask is not None else None
    out = run(way, q, k, v, mask, bias=bias)
    assert out.dtype == torch.float64
    single = run(way, q.float(), k.float(), v.float(), mask, bias=bias)
    gap = (out - single).abs().max()
    assert 0 < gap < 1e-5
    if mask is None:
        assert_same(out, formula(q, k, v), q, k, v)  # to 1e-10


# --- half precision: scores, maximum and sums in float32; the output has q's dtype, under autocast too


@every_way
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(way: str, dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in inputs(1, 300, batch=1, heads=1))
    out = run(way, q, k, v * 0 + 1)
    assert out.dtype == dtype
    assert torch.equal(out, torch.ones_like(out))  # 300 weights of a half would not sum to 1
    want = formula(q.float(), k.float(), v.float())
    torch.testing.assert_close(run(way, q, k, v), want.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-3)


@every_way
def test_the_output_has_the_dtype_of_q_under_autocast(way: str) -> None:
    q, k, v = (x.detach() for x in inputs(3, dtype=torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(way, q, k.float(), v.float()).dtype == torch.bfloat16
        out = run(way, q.float(), k, v)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, formula(q.float(), k.float(), v.float()))  # not computed in bfloat16


@pytest.mark.parametrize("cast", [torch.nn.Module.bfloat16, torch.nn.Module.half], ids=["bfloat16", "half"])
def test_casting_a_module_leaves_the_tables_of_rope_and_alibi_alone(cast: Callable[[Any], Any]) -> None:
    q, k, v = (x.detach() for x in inputs(6, dtype=torch.float32))
    for bias in (RoPE(4), ALiBi(2)):
        far = {"q_positions": torch.arange(6) + 3000, "k_positions": torch.arange(6) + 2990}
        before = attention(q, k, v, bias=bias, **far)
        assert torch.equal(attention(q, k, v, bias=cast(bias), **far), before)


# --- ALiBi: minus slope times distance, slopes of the paper


@every_way
def test_alibi_is_minus_slope_times_distance(way: str) -> None:
    rows = weights(way, 3, 3, heads=8, bias=ALiBi(8))
    e = torch.tensor([1.0, 0.5, 0.0]).neg().exp()  # slope 1/2, the last query
    close(rows[0, 0, 2], e / e.sum())
    e = torch.tensor([1.0, 0.0, 1.0]).mul(-(2.0**-8)).exp()  # the last head, the middle query: |i - j|
    close(rows[0, 7, 1], e / e.sum(), atol=1e-6)


def test_alibi_slopes_are_the_papers() -> None:
    assert ALiBi(8).slopes == tuple(2.0**-n for n in range(1, 9))
    assert ALiBi(6).slopes == (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8)


# --- RoPE layout: named, never guessed


@every_way
def test_rope_layouts_pair_other_coordinates(way: str) -> None:
    # D = 4, q at position 1, k at 0: the first pair turns by 1, the second by 1/100.
    q, v = torch.tensor([1.0, 0.0, 0.0, 0.0])[None, None, None], identity(4)
    at = {"q_positions": torch.tensor([1]), "k_positions": torch.zeros(4, dtype=torch.int64), "scale": 1.0}
    cos, sin = 0.5403, 0.8415
    for layout, logits in (("half", [cos, 0.0, sin, 0.0]), ("interleaved", [cos, sin, 0.0, 0.0])):
        close(run(way, q, v, v, bias=RoPE(4, layout=layout), **at)[0, 0, 0], torch.tensor(logits).softmax(0))
    with pytest.raises(ValueError, match="choose 'half' or 'interleaved'"):
        RoPE(4, layout="neox")


# --- determinism: the same bits every run and for any number of threads, forward and backward

BITS = """
import hashlib, torch
from unified_attn import *
torch.set_num_threads({threads})
g = torch.Generator().manual_seed(0)
n, e = 3000, 60000
q, k, v = (torch.randn(1, 4, n, 16, generator=g).requires_grad_() for _ in range(3))
# Half of the edges go to three nodes, so that rows are long enough to be cut.
target = torch.cat([torch.randint(0, 3, (e // 2,), generator=g), torch.randint(0, n, (e // 2,), generator=g)])
graph = Graph(torch.stack([torch.randint(0, n, (e,), generator=g), target]))
bias = torch.randn(e, 4, generator=g).requires_grad_()
att = torch.randn(4, 16, generator=g).requires_grad_()
sums = []
for score in (Dot(), GATv2(att)):
    out = attention(q, k, v, mask=graph, bias=EdgeBias(bias), score=score, backend="csr")
    leaves = (q, k, v, bias) if isinstance(score, Dot) else (q, k, v, bias, att)
    for x in (out, *torch.autograd.grad(out.pow(2).sum(), leaves)):
        sums.append(hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest())
print(" ".join(sums))
"""


@pytest.mark.slow
def test_csr_gives_the_same_bits_for_any_number_of_threads() -> None:
    seen = {fresh(BITS.format(threads=threads)) for threads in (1, 2, 5)}
    assert len(seen) == 1


@on_edges
def test_runs_are_equal_to_the_bit(backend: str) -> None:
    q, k, v = inputs(8, dtype=torch.float32)
    g = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 8, (2, 40), generator=g)
    bias = torch.randn(40, 2, generator=g).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(10):
            out = attention(q, k, v, mask=Graph(edge_index), bias=EdgeBias(bias), backend=backend)
            runs.append((out, *gradients(out, q, k, v, bias)))
    finally:
        torch.use_deterministic_algorithms(False)
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again, strict=True))


# --- heads: key head = query head // group


@every_way
def test_query_head_h_reads_key_head_h_over_group(way: str) -> None:
    q, k = torch.zeros(1, 4, 1, 4), torch.zeros(1, 2, 1, 4)
    v = torch.tensor([10.0, 20.0])[None, :, None, None].expand(1, 2, 1, 4)
    assert run(way, q, k, v)[..., 0].flatten().tolist() == [10.0, 10.0, 20.0, 20.0]


# --- pair vectors: added to k after the turn and before any score, and to v


@on_edges
def test_pair_vectors_are_added_to_keys_and_values(backend: str) -> None:
    # One query (1, 0, 0, 0) and two edges whose keys are 0: logits are the vectors' first coordinates times 1/2.
    q = torch.tensor([1.0, 0.0, 0.0, 0.0])[None, None, None].expand(1, 1, 2, 4)
    key = torch.tensor([2.0, 0.0])[:, None, None] * torch.tensor([1.0, 0.0, 0.0, 0.0])
    value = torch.tensor([5.0, 7.0])[:, None, None].expand(2, 1, 4)
    graph = Graph(edges((0, 0), (1, 0)))
    out = attention(q, q * 0, q * 0, mask=graph, bias=PairVectors(key=key, value=value), backend=backend)
    first = 0.7310586  # sigmoid(1)
    close(out[0, 0, 0], [5 * first + 7 * (1 - first)])
