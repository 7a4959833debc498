"""Masks: what broke in other libraries, and must not here. Each docstring says what broke; trackers are cited."""

from __future__ import annotations

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
    complete,
    edges,
    formula,
    gradients,
    identity,
    inputs,
    run,
    weights,
)
from unified_attn import (
    ALiBi,
    Causal,
    DenseBias,
    DenseMask,
    Full,
    Graph,
    Mask,
    Padding,
    Where,
    Window,
    attention,
    attention_weights,
)

every_way = pytest.mark.parametrize("way", WAYS)
floats = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


def written(table: Any) -> Tensor:
    return torch.tensor(table, dtype=torch.bool)


# --- rows in which nothing may be attended

ROW_1_HIDDEN = written([[1, 1, 1], [0, 0, 0], [1, 1, 1]])


@every_way
@floats
@pytest.mark.parametrize("kind", ["bool", "-inf", "lowest"])
def test_a_fully_masked_row_is_zero_in_every_spelling(way: str, dtype: torch.dtype, kind: str) -> None:
    """A padded query gave NaN, or the mean of all values, by its spelling: pytorch/pytorch #103963, #109517."""
    q, k, v = inputs(3, dtype=dtype)
    if kind == "bool":
        out = run(way, q, k, v, ROW_1_HIDDEN)
    else:
        low = -INF if kind == "-inf" else torch.finfo(dtype).min
        out = run(way, q, k, v, bias=DenseBias(torch.zeros(3, 3, dtype=dtype).masked_fill(~ROW_1_HIDDEN, low)))
    assert not out[:, :, 1].any()
    if dtype != torch.bfloat16:
        assert_same(out, formula(q, k, v, ROW_1_HIDDEN), q, k, v)


@every_way
@pytest.mark.parametrize("low", [-INF, torch.finfo(torch.float32).min])
def test_the_backward_of_a_fully_masked_row_is_finite(way: str, low: float) -> None:
    """The forward was patched after the softmax, and the gradients stayed NaN: Xilinx/brevitas #1591."""
    q, k, v = inputs(3, dtype=torch.float32)
    table = torch.zeros(3, 3).masked_fill(~ROW_1_HIDDEN, low).requires_grad_()
    out = run(way, q, k, v, bias=DenseBias(table))
    for gradient in torch.autograd.grad(out.sum(), (q, k, v, table), retain_graph=True):
        assert bool(gradient.isfinite().all())
    dq, _, _, dtable = gradients(out, q, k, v, table)
    assert not dq[:, :, 1].any()
    assert not dtable[1].any()


@every_way
def test_nothing_allowed_anywhere_is_zero_everywhere(way: str) -> None:
    """The same, when all rows are empty."""
    q, k, v = inputs(3, dtype=torch.float32)
    out = run(way, q, k, v, torch.zeros(3, 3, dtype=torch.bool))
    assert not out.any()
    assert not any(g.any() for g in gradients(out, q, k, v))


# --- causal masks of unequal lengths


@every_way
@pytest.mark.parametrize("keys", [1, 5, 63])
def test_one_query_sees_the_whole_cache(way: str, keys: int) -> None:
    """A decoded token saw key 0 alone, so that every step gave one vector: pytorch/pytorch #103082, #144858."""
    close(weights(way, 1, keys, Causal())[0, 0], [[1 / keys] * keys])


@every_way
@pytest.mark.parametrize("steps", [[1] * 6, [2, 4], [3, 1, 2]], ids=str)
def test_decoding_in_pieces_equals_one_pass(way: str, steps: list[int]) -> None:
    """The same, for any chunking and with a window."""
    q, k, v = inputs(6)
    for mask in (Causal(), Window.causal(3)):
        whole, done, pieces = run("reference", q, k, v, mask), 0, []
        for step in steps:
            done += step
            pieces.append(run(way, q[:, :, done - step : done], k[:, :, :done], v[:, :, :done], mask))
        assert_same(torch.cat(pieces, 2), whole, q, k, v)


def aligned(way: str, align: Any, queries: int, keys: int) -> Tensor:
    return weights(way, queries, keys, Causal(align=align), rows=align == "top_left")[0, 0]


@every_way
def test_more_queries_than_keys_under_causal(way: str) -> None:
    """The alignment depended on which side was longer: Dao-AILab/flash-attention #1778, ml-explore/mlx #2835."""
    bottom = [[0, 0], [0, 0], [0, 0], [1, 0], [0.5, 0.5]]
    top = [[1, 0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    close(aligned(way, "bottom_right", 5, 2), bottom)
    close(aligned(way, "top_left", 5, 2), top)
    close(aligned(way, "bottom_right", 2, 5), [[0.25] * 4 + [0], [0.2] * 5])
    close(aligned(way, "top_left", 2, 5), [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]])


@every_way
def test_rows_before_every_key_have_no_gradient(way: str) -> None:
    """The same, backward."""
    q, k, v = inputs(5, 2, dtype=torch.float32)
    out = run(way, q, k, v, Causal())
    dq, dk, dv = gradients(out, q, k, v)
    assert not dq[:, :, :3].any()
    assert_same(out, formula(q, k, v, written([[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]])), q, k, v)
    assert bool(dk.any())
    assert bool(dv.any())


# --- several masks, and what a mask is


@every_way
def test_a_mask_beside_a_causal_one_is_joined_by_and(way: str) -> None:
    """Both were documented as an error, combined on one device and refused on another: pytorch/pytorch #187801."""
    q, k, v = inputs(4)
    every = torch.ones(4, 4, dtype=torch.bool)
    assert_same(run(way, q, k, v, DenseMask(every) & Causal()), run(way, q, k, v, Causal()), q, k, v)
    no_0 = every.clone()
    no_0[:, 0] = False
    for mask in (DenseMask(no_0) & Causal(), Causal() & DenseMask(no_0)):
        assert_same(run(way, q, k, v, mask), formula(q, k, v, no_0.tril()), q, k, v)
        assert not run(way, q, k, v, mask)[:, :, 0].any()


@every_way
def test_true_keeps_and_its_inverse_has_a_name(way: str) -> None:
    """True meant 'hide' in the module and 'keep' in the function: pytorch/pytorch #170400."""
    tril = torch.ones(3, 3, dtype=torch.bool).tril()
    rows = [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3]
    close(weights(way, 3, 3, tril)[0, 0], rows)
    close(weights(way, 3, 3, ~DenseMask(~tril))[0, 0], rows)


@every_way
def test_a_row_of_ones_and_zeros_is_a_bias_or_a_mask_by_name(way: str) -> None:
    """A float mask of 0 and 1 was silently added, so nothing was hidden: pytorch/pytorch #21518."""
    row = torch.tensor([1.0, 1.0, 0.0])
    close(weights(way, 1, 3, bias=DenseBias(row))[0, 0], [[0.4223, 0.4223, 0.1554]])
    close(weights(way, 1, 3, row != 0)[0, 0], [[0.5, 0.5, 0.0]])
    for numbers in (row, row.long(), row.to(torch.uint8)):
        with pytest.raises(TypeError, match=r"DenseBias\(mask\)"):
            weights(way, 1, 3, numbers)


# --- poison


@every_way
@pytest.mark.parametrize("poison", [float("nan"), INF, -INF])
@pytest.mark.parametrize("kind", ["padding", "-inf", "window", "edges"])
@floats
def test_what_is_masked_is_never_read(way: str, poison: float, kind: str, dtype: torch.dtype) -> None:
    """0 x NaN of a padded key reached every output: pytorch/pytorch #101967."""
    clean = inputs(3, dtype=dtype)
    last = torch.tensor([0.0, 0.0, -INF])
    options: dict[str, Any] = {
        "padding": {"mask": Padding(written([[1, 1, 0], [1, 1, 0]]))},
        "-inf": {"bias": DenseBias(last)},
        "window": {"mask": Window(None, 0), "q_positions": torch.tensor([0, 1, 1])},
        "edges": {"mask": complete(3, 3).keep(torch.arange(9) % 3 != 2)},
    }[kind]
    if kind == "edges" and way != "reference":
        options = {"mask": DenseMask(written([1, 1, 0]))}
    dirty = []
    for x, at in zip(clean, (None, 2, 2), strict=True):
        copy = x.detach().clone()
        if at is not None:
            copy[:, :, at] = poison
        dirty.append(copy.requires_grad_())
    a, b = (run(way, *x, **options) for x in (clean, dirty))
    assert torch.equal(a, b)
    for left, right in zip(gradients(a, *clean), gradients(b, *dirty), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("backend", ON_EDGES)
@pytest.mark.parametrize("poison", [float("nan"), INF])
def test_a_source_without_edges_is_never_read(backend: str, poison: float) -> None:
    """The same on a graph: node 1 speaks to nobody, and node 0 hears nobody."""
    graph = Graph(edges((0, 1), (2, 1), (0, 2)))
    clean = inputs(3, dtype=torch.float32)
    dirty = [x.detach().clone() for x in clean]
    dirty[0][:, :, 0], dirty[1][:, :, 1], dirty[2][:, :, 1] = poison, poison, poison
    for x in dirty:
        x.requires_grad_()
    a, b = (attention(*x, mask=graph, backend=backend) for x in (clean, dirty))
    assert torch.equal(a, b)
    for left, right in zip(gradients(a, *clean), gradients(b, *dirty), strict=True):
        assert torch.equal(left, right)


# --- windows


@every_way
@pytest.mark.parametrize(("size", "row"), [(1, [0, 0, 0, 1]), (2, [0, 0, 0.5, 0.5]), (4, [0.25] * 4), (9, [0.25] * 4)])
def test_a_window_of_w_counts_the_query_itself(way: str, size: int, row: list[float]) -> None:
    """W keys in one back end, W keys besides itself in another: huggingface/transformers #39408, vllm #9679."""
    close(weights(way, 4, 4, Window.causal(size))[0, 0, 3], row)


@pytest.mark.parametrize("backend", ["reference", "scatter", "csr"])
@pytest.mark.parametrize("window", [(2, 0), (0, 3), (5, 1), (0, 0), (200, 200)], ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(63, 63), (7, 63), (63, 7), (1, 1)])
def test_windows_agree_on_every_back_end(backend: str, window: tuple[int, int], queries: int, keys: int) -> None:
    """The same, past the window, on lengths that no tile divides."""
    q, k, v = inputs(queries, keys)
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    allowed = (j - i >= -window[0]) & (j - i <= window[1])
    out = attention(q, k, v, mask=Window(*window), backend=backend)
    assert_same(out, formula(q, k, v, allowed), q, k, v)


@every_way
def test_both_sides_of_a_window_are_bounds_of_their_own(way: str) -> None:
    """(W, W) reached 2W + 1, and a negative bound meant unlimited: thu-nics/DiTFastAttn #7."""
    close(weights(way, 4, 4, Window(1, 0))[0, 0], [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]])
    close(weights(way, 4, 4, Window(0, 1))[0, 0], [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0, 0, 0, 1]])
    with pytest.raises(ValueError, match="left is -3; give a number of keys >= 0, or None for no limit"):
        Window(-3, 0)


# --- shapes


@every_way
@pytest.mark.parametrize("training", [True, False])
def test_a_mask_of_any_broadcastable_shape(way: str, training: bool) -> None:
    """[B, 1, 1, S] was refused, and stride 0 gave wrong numbers: pytorch/pytorch #191937, xformers #783."""
    q, k, v = inputs(3, 4, batch=2, heads=2)
    row = written([1, 0, 1, 1])
    full = row.expand(2, 2, 3, 4)
    with torch.set_grad_enabled(training):
        want = formula(q, k, v, full)
        shapes = [row, row[None], row[None, None, None], row.expand(3, 4), row.expand(2, 1, 1, 4), full]
        shapes += [
            full.contiguous(),
            full.contiguous()[:, :1],
            full.contiguous()[:1],
            full.transpose(1, 2).clone().mT.mT,
        ]
        for mask in [s if s.shape != (2, 3, 2, 4) else s.transpose(1, 2) for s in shapes]:
            assert_same(run(way, q, k, v, mask), want, *((q, k, v) if training else ()))


@every_way
def test_masks_that_differ_by_batch_head_query_and_key(way: str) -> None:
    """The same, where every dimension counts."""
    q, k, v = inputs(3, 4)
    full = torch.rand(2, 2, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.6
    for mask in (full, full[:1], full[:, :1], full[:, :, :1], full[..., :1], full[0, 0]):
        assert_same(run(way, q, k, v, mask), formula(q, k, v, mask), q, k, v)


@every_way
def test_strides_of_q_k_and_v_do_not_matter(way: str) -> None:
    """The same, for expanded (stride 0), transposed and sliced inputs."""
    g = torch.Generator().manual_seed(0)
    base = torch.randn(3, 5, 2, 12, generator=g, dtype=torch.float64)
    q, k, v = (base.transpose(1, 2)[..., s] for s in (slice(0, 4), slice(4, 8), slice(8, 12)))
    kinds = {
        "sliced and transposed": (q, k, v),
        "expanded over batch": (q, k[:1].expand_as(k), v[:1].expand_as(v)),
        "expanded over heads": (q, k[:, :1].expand_as(k), v[:, :1].expand_as(v)),
        "last dimension not dense": (q, k.mT.contiguous().mT, v.mT.contiguous().mT),
        "backwards": (q.flip(2), k, v.flip(3)),
    }
    for x in kinds.values():
        leaves = [y.detach().requires_grad_() for y in x]
        assert_same(run(way, *leaves, Causal()), formula(*leaves, torch.ones(5, 5, dtype=torch.bool).tril()), *leaves)


# --- one rule, any length

RULES = [
    (Full(), lambda i, j: i == i),
    (Causal(), lambda i, j: j <= i),
    (Window(2, 1), lambda i, j: (j - i >= -2) & (j - i <= 1)),
    (Where(lambda b, h, i, j: (i + j) % 2 == 0), lambda i, j: (i + j) % 2 == 0),
    (Causal() & Window(2, None) | Where(lambda b, h, i, j: j == 0), lambda i, j: (j <= i) & (j - i >= -2) | (j == 0)),
]


@every_way
@pytest.mark.parametrize(("mask", "rule"), RULES, ids=[str(mask) for mask, _ in RULES])
def test_one_object_takes_any_length(way: str, mask: Mask, rule: Any) -> None:
    """A block mask of 1024 was reused on 512, silently wrong: pytorch/pytorch #141625."""
    for length in (3, 8, 5, 8):
        q, k, v = inputs(length)
        n = torch.arange(length)
        assert_same(run(way, q, k, v, mask), formula(q, k, v, rule(n[:, None], n[None, :])), q, k, v)


@pytest.mark.parametrize(
    ("mask", "sizes"),
    [
        (torch.ones(3, 3, dtype=torch.bool), r"\[3, 3\].*\[1, 1, 5, 5\]"),
        (Padding(torch.ones(1, 3, dtype=torch.bool)), r"\[1, 3\].*\[1, 5\]"),
        (Graph(edges((0, 1)), num_keys=3), "num_keys = 3, but k has 5 rows"),
    ],
    ids=["DenseMask", "Padding", "Graph"],
)
def test_a_table_of_another_size_raises_naming_both(mask: Any, sizes: str) -> None:
    """The same, for what is a table and no rule."""
    q = torch.zeros(1, 1, 5, 4)
    with pytest.raises(ValueError, match=sizes):
        attention(q, q, q, mask=mask)


# --- ragged batches


@every_way
@pytest.mark.parametrize("lengths", [[2, 3, 0], [5], [0, 0], [1, 4, 2]], ids=str)
def test_a_ragged_batch_equals_its_sequences_one_by_one(way: str, lengths: list[int]) -> None:
    """Jagged tensors let sequences see each other, or refused masks and biases: pytorch/pytorch #177378, #154556."""
    total = sum(lengths)
    q, k, v = inputs(total, batch=1)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    same = Where(lambda b, h, i, j: ids[i] == ids[j])
    for more, bias in ((Full(), None), (Window(1, 1), ALiBi(2)), (Causal(), ALiBi(2))):
        out = run(way, q, k, v, same & more, bias=bias)
        parts = [
            attention(*(x.split(lengths, 2)[n] for x in (q, k, v)), mask=more, bias=bias, backend="reference")
            for n in range(len(lengths))
        ]
        assert_same(out, torch.cat(parts, 2), q, k, v)


@pytest.mark.parametrize("backend", ON_EDGES)
def test_graphs_of_a_batch_do_not_see_each_other(backend: str) -> None:
    """The same, as one block-diagonal graph: the gradient across a border is exactly 0."""
    first, second = edges((0, 1), (1, 0), (2, 0)), edges((0, 1), (1, 1))
    q, k, v = inputs(5, batch=1)
    out = attention(q, k, v, mask=Graph(torch.cat([first, second + 3], 1)), backend=backend)
    alone = [
        attention(*(x[:, :, part] for x in (q, k, v)), mask=Graph(index), backend=backend)
        for index, part in ((first, slice(0, 3)), (second, slice(3, 5)))
    ]
    assert_same(out, torch.cat(alone, 2), q, k, v)
    (dv,) = torch.autograd.grad(out[:, :, 4].sum(), v, retain_graph=True)
    assert not dv[:, :, :3].any()


# --- empty things


@every_way
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("mask", [None, Causal(), Window(1, 0), "tensor"], ids=str)
@pytest.mark.parametrize("bias", [None, ALiBi(2)], ids=str)
def test_empty_inputs_give_empty_or_zero_outputs(
    way: str, batch: int, queries: int, keys: int, mask: Any, bias: Any
) -> None:
    """'batch size must be positive', NaN rows, IndexErrors: pytorch/pytorch #133780, cudnn-frontend #943."""
    q, k, v = inputs(queries, keys, batch=batch, dtype=torch.float32)
    mask = torch.ones(queries, keys, dtype=torch.bool) if mask == "tensor" else mask
    out = run(way, q, k, v, mask, bias=bias)
    assert out.shape == (batch, 2, queries, 4)
    assert not out.any()
    for x, gradient in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
        assert gradient.shape == x.shape
        assert not gradient.any()


@pytest.mark.parametrize("backend", ON_EDGES)
@pytest.mark.parametrize("nodes", [0, 1, 4])
def test_a_graph_without_edges_gives_zeros(backend: str, nodes: int) -> None:
    """A floating-point crash without edges: dmlc/dgl #1598, #1245, #1504."""
    q, k, v = inputs(nodes, dtype=torch.float32)
    graph = Graph(torch.zeros(2, 0, dtype=torch.int64))
    out = attention(q, k, v, mask=graph, backend=backend)
    assert out.shape == (2, 2, nodes, 4)
    assert not out.any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (q, k, v)))
    assert attention_weights(q, k, mask=graph).shape == (2, 2, 0)


# --- masks are not numbers


@every_way
def test_a_large_negative_score_does_not_lose_to_a_masked_key(way: str) -> None:
    """Keys masked with -1e4 won against a visible score of -12000: huggingface/transformers #17306."""
    q, k = torch.tensor([[[[-12000.0]]]]), torch.tensor([[[[1.0], [0.0]]]])
    out = run(way, q, k, identity(2), written([1, 0]), scale=1.0)
    assert out.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]
    for dtype, score in ((torch.float16, -60000.0), (torch.bfloat16, -1e38)):
        half = run(way, (q / -12000 * score).to(dtype), k.to(dtype), identity(2).to(dtype), written([1, 0]))
        assert half.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


@every_way
def test_a_bias_of_minus_1e4_is_a_number(way: str) -> None:
    """The same from the other side: what is no mask leaks as it should."""
    close(weights(way, 1, 2, bias=DenseBias(torch.tensor([-1e4, -1e4])))[0, 0], [[0.5, 0.5]])


@every_way
def test_padding_the_keys_changes_nothing(way: str) -> None:
    """In cross-attention the result moved with the padded encoder length: NVIDIA/FasterTransformer #270."""
    q, k, v = inputs(3, 9)
    keep = Padding(torch.arange(9)[None] < 5)
    assert_same(run(way, q, k, v, keep), run(way, q, k[:, :, :5], v[:, :, :5]), q, k, v)
