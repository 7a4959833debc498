"""Laws that hold for every back end, whatever the numbers are."""

from __future__ import annotations

import pytest
import torch

from tests.parity.tensors import LISTED, derivatives, made, qkv, same, some_edges
from unified_attn import (
    GAT,
    ALiBi,
    Causal,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    PairVectors,
    RoPE,
    UnsupportedError,
    Where,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
    explain,
    merge,
)


@LISTED
@pytest.mark.parametrize(
    ("rule", "mask"),
    [
        (lambda i, j: i == i + j - j, None),
        (lambda i, j: j <= i, Causal()),
        (lambda i, j: (j - i >= -2) & (j - i <= 1), Window(2, 1)),
    ],
    ids=["complete", "lower triangle", "band"],
)
def test_a_graph_of_all_allowed_pairs_is_the_rule(backend: str, rule: object, mask: object) -> None:
    q, k, v = qkv()
    pair = torch.cartesian_prod(torch.arange(7), torch.arange(7)).T
    edges = pair.flip(0)[:, rule(*pair)]  # (i, j) to sources j, targets i
    edges = edges[:, torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(3))]
    ours = attention(q, k, v, mask=Graph(edges), bias=ALiBi(4), backend=backend)
    dense = attention(q, k, v, mask=mask, bias=ALiBi(4), backend="reference")
    same(ours, dense)
    same(derivatives(ours, [q, k, v]), derivatives(dense, [q, k, v]))


@LISTED
@pytest.mark.parametrize("score", ["dot", "gat", "gatv2"])
def test_nodes_have_no_order(backend: str, score: str) -> None:
    q, k, v = qkv()
    values, att, other = made((20, 4), (4, 4), (4, 4), seed=5)
    scores = {"dot": Dot(), "gat": GAT(att, other), "gatv2": GATv2(att)}
    edges, order = some_edges(), torch.tensor([3, 0, 6, 1, 2, 5, 4])  # order[new] = old
    new = torch.empty(7, dtype=torch.int64)
    new[order] = torch.arange(7)
    options = {"bias": EdgeBias(values), "score": scores[score], "backend": backend}
    before = attention(q, k, v, mask=Graph(edges), **options)
    after = attention(q[:, :, order], k[:, :, order], v[:, :, order], mask=Graph(new[edges]), **options)
    same(after, before[:, :, order])


@LISTED
def test_edges_have_no_order(backend: str) -> None:
    q, k, v = qkv()
    values, r, s = made((20, 4), (20, 2, 4), (20, 2, 7), seed=6)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(7))
    edges = some_edges()
    first = attention(q, k, v, mask=Graph(edges), bias=EdgeBias(values) + PairVectors(r, s), backend=backend)
    bias = EdgeBias(values[order]) + PairVectors(r[order], s[order])
    second = attention(q, k, v, mask=Graph(edges[:, order]), bias=bias, backend=backend)
    same(second, first)
    # Gradients come back in the caller's order.
    tensors = [q, k, v, values, r, s]
    same(derivatives(second, tensors), derivatives(first, tensors))


def test_weights_come_in_the_order_of_the_edges() -> None:
    q, k, _ = qkv()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(7))
    edges = some_edges()
    same(attention_weights(q, k, mask=Graph(edges[:, order])), attention_weights(q, k, mask=Graph(edges))[..., order])


@LISTED
@pytest.mark.parametrize("mask", [Graph(some_edges()), Window(2, 1)], ids=repr)
def test_grouped_heads_are_repeated_heads(backend: str, mask: object) -> None:
    q, k, v = qkv(heads=6)
    grouped = attention(q, k, v, mask=mask, backend=backend)
    # Heads 0, 1, 2 read key head 0: repeated, not tiled.
    full = attention(q, k[:, [0, 0, 0, 1, 1, 1]], v[:, [0, 0, 0, 1, 1, 1]], mask=mask, backend=backend)
    same(grouped, full)
    same(derivatives(grouped, [q, k, v]), derivatives(full, [q, k, v]))


@LISTED
def test_parallel_edges_are_a_bias_of_log_m(backend: str) -> None:
    q, k, v = qkv()
    edges, times = some_edges(count=10).unique(dim=1), torch.tensor([1, 2, 3, 5])
    times = times[torch.arange(edges.shape[1]) % 4]
    often = attention_with_lse(q, k, v, mask=Graph(edges.repeat_interleave(times, dim=1)), backend=backend)
    bias = EdgeBias(times.double().log())
    once = attention_with_lse(q, k, v, mask=Graph(edges), bias=bias, backend=backend)
    same(often, once)
    same(derivatives(often[0], [q, k, v]), derivatives(once[0], [q, k, v]))


@LISTED
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_merged_parts_are_the_whole(backend: str, parts: int) -> None:
    q, k, v = qkv()
    edges = some_edges()
    (values,) = made((20, 4), seed=8)
    whole = attention_with_lse(q, k, v, mask=Graph(edges), bias=EdgeBias(values), backend=backend)
    # Cut at random, so that many a row is empty in some part, and row 0 in all.
    part = torch.randint(parts, (20,), generator=torch.Generator().manual_seed(9))
    pieces = [
        attention_with_lse(q, k, v, mask=Graph(edges[:, e]), bias=EdgeBias(values[e]), backend=backend)
        for e in (part == n for n in range(parts))
    ]
    merged = merge(*zip(*pieces, strict=True))
    same(merged, whole)
    assert bool((merged[1][:, :, 0] == -torch.inf).all())
    tensors = [q, k, v, values]
    same(derivatives(merged[0], tensors), derivatives(whole[0], tensors))
    # The lse of a row that is empty in all parts is -inf: no part of a loss.
    same(derivatives(merged[1][:, :, 1:], [q, k, values]), derivatives(whole[1][:, :, 1:], [q, k, values]))


def test_merged_keys_are_the_whole_when_dense() -> None:
    q, k, v = qkv(keys=9)
    whole = attention_with_lse(q, k, v)
    pieces = [attention_with_lse(q, k[:, :, a:b], v[:, :, a:b]) for a, b in ((0, 2), (2, 2), (2, 9))]
    merged = merge(*zip(*pieces, strict=True))
    same(merged, whole)
    same(derivatives(merged[0], [q, k, v]), derivatives(whole[0], [q, k, v]))


@pytest.mark.parametrize("bias", [None, ALiBi(4), RoPE(4), RoPE(4, layout="interleaved")], ids=repr)
@pytest.mark.parametrize("mask", [Causal(), Window.causal(3), Window(2, 0) & Causal()], ids=repr)
@LISTED
def test_one_step_at_a_time_is_the_whole(backend: str, mask: object, bias: object) -> None:
    q, k, v = qkv()
    options = {"mask": mask, "bias": bias, "backend": backend}
    if explain(q, k, v, mask=mask, bias=bias).reasons[backend]:
        with pytest.raises(UnsupportedError):
            attention(q, k, v, **options)
        return
    steps = [attention(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], **options) for n in range(7)]
    same(torch.cat(steps, 2), attention(q, k, v, **options))


@LISTED
def test_heads_may_see_different_edges(backend: str) -> None:
    """A key that one query head of a group hides and another reads is read."""
    q, k, v = qkv(batch=1)
    edges = some_edges()
    mask = Graph(edges) & Where(lambda b, h, i, j: (h + j) % 2 == 0)
    whole = attention(q, k, v, mask=mask, backend=backend)
    for h in range(4):
        alone = Graph(edges[:, (h + edges[0]) % 2 == 0])
        one = attention(q[:, h : h + 1], k[:, h // 2, None], v[:, h // 2, None], mask=alone, backend=backend)
        same(whole[:, h : h + 1], one)
