"""What masks list is what they allow: held against the rule on every pair, one after another."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unified_attn import (
    BigBird,
    Causal,
    Dilated,
    Documents,
    GlobalTokens,
    Graph,
    Longformer,
    Mask,
    Padding,
    Window,
)
from unified_attn.pairs import Pairs, Shape

BATCH = 2
SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (1, 6), (5, 5), (4, 7), (7, 5), (2, 31), (9, 63), (40, 40), (64, 17)]


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flags(keys: int, batch: int) -> Tensor:
    return torch.rand(batch, keys, generator=drawn(keys)) < 0.2


def documents(keys: int, *batch: int) -> Documents:
    return Documents(torch.randint(-2, 3, (*batch, keys), generator=drawn(keys)))


# By name; those with tokens of their own know no more queries than keys.
RULES: dict[str, Callable[[int], Mask]] = {
    "window": lambda n: Window(3, 2),
    "dilated": lambda n: Dilated(2, 3),
    "dilated 0": lambda n: Dilated(0, 5),
    "dilated wide": lambda n: Dilated(30, 2),
    "dilated 1": lambda n: Dilated(3, 1),
    "bigbird": lambda n: BigBird(4, 1, 3, 2, seed=1),
    "bigbird random": lambda n: BigBird(2, 0, 1, 3, seed=2),
    "bigbird global": lambda n: BigBird(3, 2, 1, 0, seed=0),
    "bigbird wide": lambda n: BigBird(5, 1, 21, 1, seed=2**63 - 1),
}
TOKENS: dict[str, Callable[[int], Mask]] = {
    "documents": documents,
    "documents [1,N]": lambda n: documents(n, 1),
    "documents [B,N]": lambda n: documents(n, BATCH),
    "global": lambda n: GlobalTokens([x for x in (0, 3, n - 1) if 0 <= x < n]),
    "global none": lambda n: GlobalTokens([]),
    "global [1,N]": lambda n: GlobalTokens(flags(n, 1)),
    "global [B,N]": lambda n: GlobalTokens(flags(n, BATCH)),
    "longformer": lambda n: Longformer(2, [x for x in (0, 5) if x < n]),
    "longformer 0": lambda n: Longformer(0, []),
    "longformer [1,N]": lambda n: Longformer(3, flags(n, 1)),
    "longformer [B,N]": lambda n: Longformer(1, flags(n, BATCH)),
}
EXACT = {*RULES, *TOKENS} - {"documents [B,N]", "global [B,N]", "longformer [B,N]"}


def shape_of(queries: int, keys: int, *, batch: int = BATCH, from_zero: bool = False) -> Shape:
    offset = 0 if from_zero else keys - queries
    return Shape(batch, 2, 2, queries, keys, 4, 4, offset, None, torch.device("cpu"))


def dense(mask: Mask, shape: Shape) -> Tensor:
    """[B, H, Nq, Nk], by the rule asked of all pairs."""
    rows = torch.arange(shape.num_queries)[None] + shape.offset
    pairs = Pairs(shape, rows, torch.arange(shape.num_keys)[None])
    return mask.on(pairs).expand(shape.batch, shape.num_heads, shape.num_queries, shape.num_keys)


def listed(mask: Mask, shape: Shape) -> tuple[Tensor, Tensor]:
    """[Nq, Nk] how often each pair is listed, and [B, H, Nq, Nk] what the list and its rest allow."""
    found = mask.candidates(shape)
    assert found is not None
    pairs = found.list()
    assert found.pairs.num_pairs >= pairs.num_pairs or mask.graph is not None
    assert (pairs.num_queries, pairs.num_keys) == (shape.num_queries, shape.num_keys)
    assert_rows(pairs)
    times = torch.zeros(shape.num_queries, shape.num_keys, dtype=torch.int64)
    times.index_put_((pairs.query, pairs.key), torch.ones(pairs.num_pairs, dtype=torch.int64), accumulate=True)
    allowed = (times > 0).expand(shape.batch, shape.num_heads, -1, -1)
    if found.rest is not None:
        rows = torch.arange(shape.num_queries)[None] + shape.offset
        answer = found.rest.on(Pairs(shape, rows, torch.arange(shape.num_keys)[None], pairs))
        answer = answer.expand(shape.batch, shape.num_heads, pairs.num_pairs)
        allowed = torch.zeros_like(allowed).index_put((slice_all(shape.batch), slice_all(shape.num_heads, 1),
                                                       pairs.query, pairs.key), answer)  # fmt: skip
    return times, allowed


def slice_all(size: int, place: int = 0) -> Tensor:
    return torch.arange(size).reshape([-1, 1] if place else [-1, 1, 1])


def assert_rows(pairs: object) -> None:
    """Compressed rows and their transpose hold the same pairs by the same numbers."""
    rows = pairs.rows()
    for indptr, other, edge, major, minor in (
        (rows.indptr, rows.col, rows.edge, pairs.query, pairs.key),
        (rows.t_indptr, rows.t_row, rows.t_edge, pairs.key, pairs.query),
    ):
        ends = torch.arange(indptr.shape[1] - 1).repeat_interleave(indptr[0].diff())
        assert torch.equal(ends, major[edge.long()])
        assert torch.equal(other.long(), minor[edge.long()])
        assert torch.equal(edge.long().sort().values, torch.arange(pairs.num_pairs))
        assert (indptr.dtype, other.dtype, edge.dtype) == (torch.int64, torch.int32, torch.int32)


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", [*RULES, *TOKENS])
def test_a_list_is_what_the_rule_allows(name: str, queries: int, keys: int) -> None:
    if name in TOKENS and queries > keys:
        with pytest.raises(ValueError, match=f"q has {queries} rows but k has {keys}"):
            TOKENS[name](keys).check(shape_of(queries, keys))
        return
    mask = {**RULES, **TOKENS}[name](keys)
    shape = shape_of(queries, keys)
    mask.check(shape)
    times, allowed = listed(mask, shape)
    assert int(times.max() if times.numel() else 0) <= 1
    assert torch.equal(allowed, dense(mask, shape))
    assert (mask.candidates(shape).rest is None) == (name in EXACT)


@pytest.mark.parametrize("seed", range(60))
def test_compositions_list_what_they_allow(seed: int) -> None:
    draw = random.Random(seed)
    queries, keys = draw.choice([(1, 6), (5, 5), (4, 17), (30, 30)])
    more: dict[str, Callable[[int], Mask]] = {
        "causal": lambda n: Causal(),
        "padding": lambda n: Padding(torch.rand(BATCH, n, generator=drawn(seed)) < 0.7),
        "not window": lambda n: ~Window(1, 2),
    }
    names = [draw.choice([*RULES, *TOKENS]) for _ in range(draw.choice([1, 2]))] + [draw.choice([*more])]
    draw.shuffle(names)
    masks = [{**RULES, **TOKENS, **more}[name](keys) for name in names]
    whole = masks[0]
    table = dense(masks[0], shape_of(queries, keys))
    for mask in masks[1:]:
        both = draw.choice([True, True, False])
        part = dense(mask, shape_of(queries, keys))
        whole = whole & mask if both else whole | mask
        table = table & part if both else table | part
    shape = shape_of(queries, keys)
    assert torch.equal(dense(whole, shape), table)
    if whole.candidates(shape) is not None:
        assert torch.equal(listed(whole, shape)[1], table)


def test_and_takes_the_shorter_list() -> None:
    shape = shape_of(64, 64)
    ids = torch.arange(64) // 32
    narrow, wide = Window(1, 1), Window(40, 40)
    assert (Documents(ids) & narrow).candidates(shape).list().num_pairs == 3 * 64 - 2
    assert (Documents(ids) & wide).candidates(shape).list().num_pairs == 2 * 32 * 32
    assert (Longformer(2, [0]) & Documents(ids)).candidates(shape).list().num_pairs < 2 * 32 * 32


def test_with_a_graph_tokens_are_the_last_too() -> None:
    """Edges keep their numbers; the rule is asked of each."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 1, 0, 0]])
    mask = Graph(edges) & Documents(torch.tensor([0, 1, 0, 1]))  # queries: tokens 2 and 3
    shape = Shape(1, 1, 1, 2, 4, 4, 4, 0, 4, torch.device("cpu"))
    found = mask.candidates(shape)
    assert found.pairs.edges
    pairs = Pairs(shape, torch.arange(2)[None], torch.arange(4)[None], found.list())
    assert found.rest.on(pairs).flatten().tolist() == [False, True, True, False]


@pytest.mark.parametrize("mask", [BigBird(4, 1, 3, 2, seed=0), Dilated(2, 3), Longformer(2, [0])], ids=repr)
def test_positions_leave_no_list(mask: Mask) -> None:
    shape = Shape(1, 1, 1, 5, 5, 4, 4, None, None, torch.device("cpu"))
    assert mask.candidates(shape) is None


@pytest.mark.parametrize("mask", [Documents(torch.tensor([0, 1, 0])), GlobalTokens([1])], ids=repr)
def test_rows_are_listed_whatever_the_positions(mask: Mask) -> None:
    shape = Shape(1, 1, 1, 2, 3, 4, 4, None, None, torch.device("cpu"))
    assert mask.candidates(shape).list().num_pairs == {"Documents": 3, "GlobalTokens": 4}[type(mask).__name__]


def test_lists_are_kept_and_go_when_the_mask_moves() -> None:
    mask, shape = Documents(torch.tensor([0, 0, 1])), shape_of(3, 3)
    first = mask.candidates(shape).list()
    assert mask.candidates(shape).list() is first
    mask.to(torch.device("cpu"))
    again = mask.candidates(shape).list()
    assert again is not first
    assert torch.equal(again.col, first.col)
    rule = shape_of(20, 20)
    assert BigBird(2, 1, 3, 1, seed=5).candidates(rule).list() is BigBird(2, 1, 3, 1, seed=5).candidates(rule).list()
    assert (
        BigBird(2, 1, 3, 1, seed=6).candidates(rule).list() is not BigBird(2, 1, 3, 1, seed=5).candidates(rule).list()
    )


def test_too_many_pairs_raise_before_they_are_listed() -> None:
    from unified_attn.rows import list_runs

    with pytest.raises(ValueError, match="lists 2147483648 pairs: a list has at most 2147483647"):
        list_runs(torch.zeros(2, 1, dtype=torch.int64), torch.full((2, 1), 2**30), 2**30)


def test_the_transpose_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from unified_attn.rows import Band

    band = Band(6, 9, 3, 2, 1, torch.device("cpu"))
    with_loops = band._list().rows()
    monkeypatch.setitem(sys.modules, "unified_attn._counting_sort", None)
    without = band._list().rows()
    for name in ("t_indptr", "t_row", "t_edge"):
        assert torch.equal(getattr(with_loops, name), getattr(without, name))
        assert getattr(with_loops, name).dtype == getattr(without, name).dtype
