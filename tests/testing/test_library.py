"""The library's own masks, biases, scores and back ends keep the laws. A new one takes a line in a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unified_attn import (
    GAT,
    NTK,
    Additive,
    ALiBi,
    BigBird,
    Causal,
    DenseBias,
    DenseMask,
    Dilated,
    Documents,
    Dot,
    EdgeBias,
    EdgeFeatures,
    EdgeProjection,
    EdgeTypes,
    Full,
    GATv2,
    GlobalTokens,
    Graph,
    LogPrior,
    Longformer,
    NoBias,
    NodeTypes,
    Padding,
    PairVectors,
    PathFeatures,
    RelativeBias,
    RelativeVectors,
    RoPE,
    ShortestPath,
    T5Bias,
    Where,
    Window,
    YaRN,
)
from unified_attn.backends import BACKENDS
from unified_attn.testing import check_backend, check_bias, check_mask, check_score

RANDOM = torch.Generator().manual_seed(0)
EDGES = torch.tensor([[0, 1, 2, 2, 4, 0, 0], [1, 1, 0, 0, 3, 4, 4]])  # parallel edges, a loop; none to node 2
GRAPH = Graph(EDGES)
KEEP = torch.tensor([[True, True, True, True, False], [False] * 5])


def learned(*size: int) -> Tensor:
    return nn.Parameter(torch.randn(size, generator=RANDOM, dtype=torch.float64))


def trained(bias: nn.Module) -> nn.Module:
    """The module with weights that say something: learned tables begin at 0."""
    for parameter in bias.parameters():
        nn.init.normal_(parameter, generator=RANDOM)
    return bias


def coin(*size: int) -> Tensor:
    return torch.rand(size, generator=RANDOM) < 0.5


def parity(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (b + h + i - j) % 2 == 0


def recency(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return -0.1 * (i - j).abs().double()


MASKS = [
    Full(),
    Causal(),
    Causal(align="top_left"),
    Window(2, 1),
    Window(0, 0),
    Window(None, 1),
    Window(1, None),
    Window.causal(3),
    Padding(KEEP),
    Padding(KEEP[:1]),
    Padding(KEEP, queries=~KEEP),
    Padding.from_lengths(torch.tensor([2, 5])),
    DenseMask(coin(2, 2, 5, 5)),
    DenseMask(coin(2, 1, 5)),
    Where(parity),
    GRAPH,
    Graph(EDGES, num_keys=5),
    Graph(torch.zeros(2, 0, dtype=torch.int64)),
    GRAPH.keep(coin(7)),
    GRAPH.keep(coin(7, 2)),
    GRAPH & Causal(),
    GRAPH & Padding(KEEP),
    GRAPH & GRAPH,
    GRAPH | Window(0, 0),
    ~GRAPH,
    ~Causal(),
    Causal() & Padding(KEEP),
    Causal(align="top_left") & Padding(KEEP, queries=~KEEP) & Window(None, 1),
    Causal() & Window(2, 2) & Where(parity),
    Window(1, 0) | Window(0, 2) & ~Window(0, 1),
    ~(Window(1, 1) | Padding(KEEP)),
    Documents(torch.tensor([0, 0, 1, 1, 1])),
    Documents(torch.tensor([[2, 0, 0, 2, 1], [0, 0, 0, 0, 1]])),
    Documents.from_lengths(torch.tensor([2, 0, 3])) & Causal(),
    GlobalTokens([1, 4]),
    GlobalTokens(KEEP),
    Longformer(1, [0]),
    Longformer(1, KEEP) & Padding(KEEP),
    BigBird(block_size=2, global_blocks=1, window_blocks=1, random_blocks=1, seed=3),
    BigBird(block_size=1, global_blocks=0, window_blocks=3, random_blocks=1, seed=0) & Causal(),
    Dilated(1, 2),
    Dilated(2, 3) | Documents(torch.tensor([0, 0, 1, 1, 1])),
]

BIASES: list[tuple[Any, dict[str, Any]]] = [
    (NoBias(), {"relative": True}),
    (ALiBi(2), {"relative": True}),
    (ALiBi(3), {"relative": True, "num_heads": 3, "sizes": [(5, 5), (2, 4)]}),
    (RoPE(4), {"relative": True}),
    (RoPE(4, layout="interleaved", rotary_dim=2, start=3), {"relative": True}),
    (DenseBias(learned(2, 5, 5)), {}),
    (DenseBias(learned(1, 2, 1, 1)), {}),
    (DenseBias(torch.where(coin(5, 5), 0.0, -torch.inf)), {}),
    (DenseBias(nn.Parameter(torch.randn(5, generator=RANDOM))), {}),
    (Additive(recency), {"relative": True}),
    (trained(RelativeBias(2, 3)), {"relative": True}),
    (trained(T5Bias(2)), {"relative": True}),
    (trained(T5Bias(2, num_buckets=8, max_distance=5, bidirectional=False)), {"relative": True}),
    (trained(NodeTypes(3, 2))(torch.tensor([0, 2, 1, 1, 0]), torch.tensor([1, 1, 0, 2, 2])), {}),
    (trained(ShortestPath(2, 2))(torch.tensor([[0, 1, -1], [1, 0, 3], [-1, 2, 0]])), {"sizes": [(3, 3)]}),
    (
        trained(PathFeatures(2, 3, 2))(torch.randn(4, 2, generator=RANDOM), torch.tensor([[[0, 3], [1, -1]]] * 2)),
        {"sizes": [(2, 2)]},
    ),
    (LogPrior(torch.tensor([[0.5, 0.0, 1.0, 2.0, 0.25]])), {}),
    (LogPrior(torch.tensor([0.5, 0.0, 1.0, 2.0, 0.25, 1.0, 0.0])), {"mask": GRAPH}),
    (trained(EdgeTypes(3, 2))(torch.tensor([0, 1, 2, 2, 0, 1, 0])), {"mask": GRAPH}),
    (trained(EdgeFeatures(3, 2))(torch.randn(7, 3, generator=RANDOM)), {"mask": GRAPH}),
    (RoPE(4, scaling=NTK(4.0)), {"relative": True}),
    (trained(RelativeVectors(2, 4)), {"relative": True}),
    (EdgeProjection(learned(7, 3), learned(8, 3), learned(8, 3)), {"mask": GRAPH}),
    (RoPE(4, scaling=YaRN(4.0, 8)), {"relative": True}),
    (EdgeBias(learned(7)), {"mask": GRAPH}),
    (EdgeBias(learned(7, 2)), {"mask": GRAPH & Causal()}),
    (EdgeBias(learned(7, 2), EDGES, default=-0.5), {}),
    (PairVectors(learned(7, 2, 4), learned(7, 2, 4)), {"mask": GRAPH}),
    (ALiBi(2) + RoPE(4), {"relative": True}),
    (ALiBi(2) + EdgeBias(learned(7)) + RoPE(4), {"mask": GRAPH}),
]

SCORES: list[tuple[Any, dict[str, Any]]] = [
    (Dot(), {}),
    (Dot(), {"mask": GRAPH}),
    (Dot(softcap=2.0), {}),
    (Dot(sink=learned(2)), {}),
    (Dot(softcap=2.0, sink=learned(2)), {"mask": GRAPH}),
    (GAT(learned(2, 4), learned(2, 4)), {}),
    (GAT(learned(2, 4), learned(2, 4)), {"mask": GRAPH & Causal()}),
    (GAT(learned(2, 4), learned(2, 4), negative_slope=0.1, edge=learned(7, 2)), {"mask": GRAPH}),
    (GATv2(learned(2, 4)), {}),
    (GATv2(learned(2, 4)), {"mask": GRAPH}),
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_masks_keep_the_laws(mask: Any) -> None:
    check_mask(mask)


@pytest.mark.parametrize(("bias", "options"), BIASES, ids=repr)
def test_biases_keep_the_laws(bias: Any, options: dict[str, Any]) -> None:
    check_bias(bias, **options)


@pytest.mark.parametrize(("score", "options"), SCORES, ids=repr)
def test_scores_keep_the_laws(score: Any, options: dict[str, Any]) -> None:
    check_score(score, **options)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "flex" else ()) for name in BACKENDS]
)
def test_back_ends_keep_the_laws(name: str) -> None:
    check_backend(name, dtypes=[torch.float64], forward_only=name == "flex")  # flex has no gradients on CPU


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_back_ends_keep_the_laws_in_float32(name: str) -> None:
    check_backend(name, dtypes=[torch.float32], forward_only=name == "flex")


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_laws_hold_where_there_is_nothing(sizes: tuple[int, int]) -> None:
    for mask in (Causal(), Window(1, 1), Where(parity)):
        check_mask(mask, sizes=[sizes])
    check_bias(trained(T5Bias(2)), sizes=[sizes])
    check_score(Dot(sink=torch.zeros(2)), sizes=[sizes])


def test_sizes_that_are_none_are_refused() -> None:
    for check, thing in ((check_mask, Causal()), (check_bias, ALiBi(2)), (check_score, Dot())):
        with pytest.raises(ValueError, match="sizes holds -1; it must be at least 0"):
            check(thing, sizes=[(-1, 2)])
        with pytest.raises(ValueError, match="num_heads holds 0; it must be at least 1"):
            check(thing, num_heads=0)
        with pytest.raises(TypeError, match=r"sizes is .*; give an integer"):
            check(thing, sizes=[(2, 1.5)])


def test_random_numbers_go_on_as_if_nothing_was_checked() -> None:
    torch.manual_seed(3)
    want = torch.rand(4)
    torch.manual_seed(3)
    check_backend("sdpa", dtypes=[torch.float64], forward_only=True)
    check_mask(Causal(), sizes=[(3, 3)])
    check_bias(ALiBi(2), sizes=[(3, 3)])
    check_score(Dot(), sizes=[(3, 3)])
    assert torch.equal(torch.rand(4), want)
