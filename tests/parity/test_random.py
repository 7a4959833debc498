"""Problems made by Hypothesis: any sizes, 0 and 1 among them, composed masks and biases, any strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.parity.bias_cases import BIASES, NEEDS_EDGES, NEEDS_EVEN, BiasCase
from tests.parity.cases import DIMS, DTYPES, assemble
from tests.parity.compare import compare
from tests.parity.grid import Grid
from tests.parity.mask_cases import MASKS, MaskCase, names_tokens, takes_positions
from tests.parity.score_cases import SCORES

# A plain tensor composes with nothing, and kept edges are tied to one graph.
PARTS = [name for name in MASKS if name not in ("none", "bool [Nq,Nk]") and "keep" not in name]
EXTRA = ["alibi", "own edges [E,H]", "dense [Nq,Nk]", "additive", "edge [E]"]

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "node-major": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every second": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "head size first": lambda x: x.movedim(3, 0).contiguous().movedim(0, 3),
    "a slice": lambda x: torch.cat([x[:, :, :1] + 1, x, x[:, :, :1]], 2)[:, :, min(1, x.shape[2]) :][
        :, :, : x.shape[2]
    ],
}


@st.composite
def masks(draw: st.DrawFn) -> tuple[list[str], list[str], bool]:
    names = draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3))
    joints = [draw(st.sampled_from("&|")) for _ in names[1:]]
    return names, joints, draw(st.booleans())


def composed(names: list[str], joints: list[str], inverted: bool) -> Callable[[Grid], MaskCase]:
    def make(g: Grid) -> MaskCase:
        whole = MASKS[names[0]](g)
        for joint, name in zip(joints, names[1:], strict=True):
            whole = whole & MASKS[name](g) if joint == "&" else whole | MASKS[name](g)
        return ~whole if inverted else whole

    return make


def summed(names: list[str]) -> Callable[[Grid, MaskCase], BiasCase]:
    def make(g: Grid, m: MaskCase) -> BiasCase:
        fitting = [
            name
            for name in names
            if (m.edges is not None or name not in NEEDS_EDGES) and (g.dim % 2 == 0 or name not in NEEDS_EVEN)
        ]
        parts = [BIASES[name](g, m) for name in fitting if name != "none"]
        return sum(parts[1:], parts[0]) if parts else BIASES["none"](g, m)

    return make


@st.composite
def problems(draw: st.DrawFn) -> object:
    names, joints, inverted = draw(masks())
    queries, keys = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    if any(map(names_tokens, names)):
        queries = min(queries, keys)
    batch = draw(st.sampled_from([1, 2, 0]))
    heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 3), (2, 1)]))
    dim, value_dim = DIMS[draw(st.sampled_from(["4/7", "8/8", "5/3"]))]
    seed = draw(st.integers(0, 2**20))
    random = torch.Generator().manual_seed(seed)
    placed = draw(st.booleans()) and all(map(takes_positions, names))
    if placed:
        rows = draw(st.sampled_from([1, batch]))
        at = [torch.randint(12, (rows, n), generator=random) for n in (queries, keys)]
    else:
        start = 0 if any("graph" in name for name in names) else keys - queries
        at = [torch.arange(queries)[None] + start, torch.arange(keys)[None]]
    dtype = DTYPES[draw(st.sampled_from(["float64", "float32", "bfloat16"]))]
    g = Grid(batch, heads, kv_heads, queries, keys, dim, value_dim, dtype, random, *at)
    score = draw(st.sampled_from([name for name in SCORES if name != "gat edge"]))
    bias = summed([draw(st.sampled_from(list(BIASES))), draw(st.sampled_from(["none", *EXTRA]))])
    scale, dropout = draw(st.sampled_from([None, None, 0.3, 0.0])), draw(st.sampled_from([0.0, 0.0, 0.4]))
    case = assemble(
        g, composed(names, joints, inverted), bias, SCORES[score], scale, dropout, given_positions=placed, seed=seed
    )
    for name in ("q", "k", "v"):
        if name != "q" and batch > 0 and dtype != torch.bfloat16 and draw(st.sampled_from([False, False, True])):
            # One sequence for the whole batch: a stride of 0. (A gradient in half is rounded before expand sums it.)
            case.given[name] = case.given[name][:1].detach().requires_grad_()
            case.inputs[name] = case.given[name].expand(batch, -1, -1, -1)
        else:
            case.inputs[name] = LAYOUTS[draw(st.sampled_from(list(LAYOUTS)))](case.given[name])
    return case


QUIET = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@settings(max_examples=200, **QUIET)
@given(problems())
def test_random_problems(case: object) -> None:
    assert compare(case) == []


@pytest.mark.slow
@settings(max_examples=3000, **QUIET)
@given(problems())
def test_more_random_problems(case: object) -> None:
    assert compare(case) == []
