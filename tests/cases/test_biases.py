"""Biases, positions and scores: what broke in other libraries, and must not here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases.tools import (
    DENSE,
    INF,
    ON_EDGES,
    WAYS,
    assert_same,
    close,
    edges,
    formula,
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
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    NoBias,
    RoPE,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
)

every_way = pytest.mark.parametrize("way", WAYS)
on_edges = pytest.mark.parametrize("backend", ON_EDGES)


# --- ALiBi

EIGHT = [2.0**-n for n in range(1, 9)]
SLOPES = {
    1: [2.0**-8],
    2: [2.0**-4, 2.0**-8],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: EIGHT,
    12: [*EIGHT, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    16: [2.0 ** (-n / 2) for n in range(1, 17)],
    40: [2.0 ** (-n / 4) for n in range(1, 33)] + [2.0 ** (-(2 * n + 1) / 8) for n in range(8)],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_slopes_of_any_number_of_heads(heads: int) -> None:
    """The geometric formula alone, or an exponent one off, loads no checkpoint: ml-explore/mlx #343, CROMA #12."""
    assert ALiBi(heads).slopes == pytest.approx(SLOPES[heads], rel=1e-12)


@every_way
@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_slopes_as_seen_in_the_weights(way: str, heads: int) -> None:
    """The same, read off the weights: log-ratio of two neighbouring keys."""
    rows = weights(way, 2, 2, Causal(), heads=heads, bias=ALiBi(heads))[0]
    close((rows[:, 1, 1] / rows[:, 1, 0]).log(), SLOPES[heads], atol=1e-5)


@every_way
def test_alibi_favours_near_keys(way: str) -> None:
    """The sign of an official example was turned: meta-pytorch/attention-gym #29."""
    close(weights(way, 3, 3, Causal(), heads=8, bias=ALiBi(8))[0, 0, 2], [0.1863, 0.3072, 0.5065])
    close(weights(way, 3, 3, heads=8, bias=ALiBi(8))[0, 0, 0], [0.5065, 0.3072, 0.1863])


@every_way
def test_alibi_of_one_cached_query(way: str) -> None:
    """The bias was built over the one query, so it vanished after the prompt: keras-team/keras-hub #2861."""
    close(weights(way, 1, 4, Causal(), heads=8, bias=ALiBi(8))[0, 0], [[0.1015, 0.1674, 0.2760, 0.4551]])


@every_way
@pytest.mark.parametrize("steps", [[1] * 6, [2, 4], [4, 1, 1]], ids=str)
@pytest.mark.parametrize(
    "bias",
    [ALiBi(2), RoPE(4), RoPE(4, layout="interleaved") + ALiBi(2), Additive(lambda b, h, i, j: (i * 0.3 - j).sin())],
    ids=str,
)
def test_step_equals_whole_with_every_bias_of_positions(way: str, steps: list[int], bias: Any) -> None:
    """The same for any chunking; elsewhere positions were one off, or tables too small: vllm-project/vllm #945."""
    q, k, v = inputs(6)
    whole, done, pieces = run("reference", q, k, v, Causal(), bias=bias), 0, []
    for step in steps:
        done += step
        pieces.append(run(way, q[:, :, done - step : done], k[:, :, :done], v[:, :, :done], Causal(), bias=bias))
    assert_same(torch.cat(pieces, 2), whole, q, k, v)


@every_way
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_alibi_tells_neighbours_apart_far_from_the_start(way: str, dtype: torch.dtype) -> None:
    """Slope times key index collides past 256 in bfloat16: Dao-AILab/flash-attention #845."""
    bias = ALiBi(8).to(dtype)
    zero = torch.zeros(1, 8, 1, 4, dtype=dtype)
    two = identity(2).expand(1, 8, 2, 4).to(dtype)
    at = {"q_positions": torch.tensor([9000]), "k_positions": torch.tensor([8190, 8191])}
    # Only the two last keys, whose weights would vanish among 8192.
    row = run(way, zero, zero.expand(1, 8, 2, 4), two, bias=bias, **at)[0, 0, 0, :2].float()
    close(row, torch.tensor([0.0, 0.5]).softmax(0), atol=4e-3)


def test_alibi_over_8192_keys_in_bfloat16() -> None:
    """The same, whole: the last two keys' logits differ by a half."""
    q, k = torch.zeros(1, 8, 1, 4, dtype=torch.bfloat16), torch.zeros(1, 8, 8192, 4, dtype=torch.bfloat16)
    row = attention_weights(q, k, mask=Causal(), bias=ALiBi(8))[0, 0, 0]
    close((row[-1] / row[-2]).log(), 0.5)
    close((row[-1] / row[-11]).log(), 5.0)


# --- RoPE


@every_way
@pytest.mark.parametrize("dim", [4, 8])
def test_the_two_layouts_agree_after_a_permutation(way: str, dim: int) -> None:
    """Fluent but wrong output from the other layout of pairs: huggingface/transformers #25199."""
    q, k, v = inputs(5, dim=dim)
    evens_then_odds = torch.cat([torch.arange(0, dim, 2), torch.arange(1, dim, 2)])
    interleaved = run(way, q, k, v, bias=RoPE(dim, layout="interleaved"))
    half = run(way, q[..., evens_then_odds], k[..., evens_then_odds], v, bias=RoPE(dim, layout="half"))
    assert_same(half, interleaved, q, k, v)
    assert not torch.allclose(run(way, q, k, v, bias=RoPE(dim, layout="half")), interleaved, atol=1e-2)
    with pytest.raises(ValueError, match="head_dim is 7"):
        RoPE(7)


def turn(x: Tensor, position: Tensor, base: float = 10000.0) -> Tensor:
    """RoPE of the paper as complex numbers: coordinates 2p and 2p + 1 turn by position * base^(-2p/D)."""
    rate = base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    wave = torch.polar(torch.ones(()).double(), position[:, None] * rate)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * wave).flatten(-2)


@every_way
@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("start", [0, 11])
def test_rope_equals_complex_rotation(way: str, base: float, start: int) -> None:
    """Rotations written out, since either layout looks plausible."""
    q, k, v = inputs(3, 6, dim=8)
    rope = RoPE(8, base, layout="interleaved", start=start)
    at = torch.arange(6).double() + start
    assert_same(run(way, q, k, v, bias=rope), formula(turn(q, at[3:], base), turn(k, at, base), v), q, k, v)


@every_way
def test_rope_of_the_first_coordinates_leaves_the_rest(way: str) -> None:
    """The same for a rotary width below D."""
    q, k, v = inputs(4, dim=8)
    at = torch.arange(4).double()
    turned = [torch.cat([turn(x[..., :4], at), x[..., 4:]], -1) for x in (q, k)]
    assert_same(run(way, q, k, v, bias=RoPE(8, layout="interleaved", rotary_dim=4)), formula(*turned, v), q, k, v)


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_depends_on_the_gap_alone_far_from_the_start(way: str, dtype: torch.dtype) -> None:
    """Angles in bfloat16 alias past 256: huggingface/transformers #29285, vllm-project/vllm #863."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=g).mul(2).to(dtype)
    scores = []
    for at in (3, 1003, 30003):
        where = {"q_positions": torch.tensor([at]), "k_positions": torch.tensor([at - 3])}
        bias = RoPE(8).to(dtype)
        if way in DENSE:
            lse = attention_with_lse(q, k, k, bias=bias, **where, backend=way)[1]
        else:
            backend = way.removesuffix(" on edges")
            lse = attention_with_lse(q, k, k, mask=Graph(edges((0, 0))), bias=bias, **where, backend=backend)[1]
        scores.append(float(lse))  # of one key: its logit
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    assert scores[2] == pytest.approx(scores[0], abs=5e-3)  # float32 positions of 30000 resolve 0.002


def test_rope_is_a_bias_of_content() -> None:
    """<R_i q, R_j k> = <q, k> + <q, (R_{j-i} - I) k>: turning and adding are two views of one prior."""
    q, k, v = inputs(4, batch=1, heads=1)
    at = torch.arange(4).double()
    added = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(4):
        for j in range(4):
            moved = turn(k[0, 0, j][None], at[j : j + 1] - at[i : i + 1])[0] - k[0, 0, j]
            added[i, j] = q[0, 0, i] @ moved / 2.0
    out = attention(q, k, v, bias=RoPE(4, layout="interleaved"))
    torch.testing.assert_close(out, formula(q, k, v, bias=added), rtol=1e-10, atol=1e-10)


# --- scale


@every_way
@pytest.mark.parametrize(("scale", "logit"), [(None, 3.0), (1.0, 5.0), (0.0, 1.0), (0.5, 3.0)])
def test_the_scale_is_explicit_and_the_bias_unscaled(way: str, scale: float | None, logit: float) -> None:
    """A model whose scores are not scaled was divided by sqrt(d) on the fast path: huggingface/transformers #46946."""
    q, k = torch.ones(1, 1, 1, 4), torch.stack([torch.ones(4), torch.zeros(4)])[None, None]
    bias = DenseBias(torch.tensor([1.0, 0.0]))
    row = run(way, q, k, identity(2), bias=bias, scale=scale)[0, 0, 0]
    close(row[0], 1 / (1 + math.exp(-logit)), atol=1e-6)


@every_way
@pytest.mark.parametrize("dim", [4, 8, 16])
def test_the_default_scale_follows_the_head_size_of_the_queries(way: str, dim: int) -> None:
    """The same, where values have another size."""
    q, k, v = inputs(3, dim=dim, value_dim=4)
    assert_same(run(way, q, k, v), formula(q, k, v, scale=1 / math.sqrt(dim)), q, k, v)


# --- learned biases

SHAPES: list[tuple[int, ...]] = [
    (),
    (2, 1, 1),
    (1, 2, 1, 4),
    (4,),
    (3, 1),
    (3, 4),
    (2, 2, 3, 4),
    (2, 1, 1, 1),
    (1, 1, 1, 1),
]


@every_way
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("alone", [False, True], ids=["with q, k, v", "alone"])
def test_a_learned_bias_of_any_shape_gets_its_gradient(way: str, shape: tuple[int, ...], alone: bool) -> None:
    """Refused, or a crash when it alone needs a gradient: pytorch/pytorch #145208, #145869, xformers #783."""
    q, k, v = inputs(3, 4)
    if alone:
        q, k, v = (x.detach() for x in (q, k, v))
    table = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    leaves = [table] if alone else [q, k, v, table]
    out = run(way, q, k, v, Causal(), bias=DenseBias(table))
    i = torch.arange(3)[:, None] + 1
    assert_same(out, formula(q, k, v, torch.arange(4) <= i, table), *leaves)
    (gradient,) = torch.autograd.grad(out.sum(), table)
    assert gradient.shape == shape


@every_way
@pytest.mark.parametrize("shape", [(), (2, 1, 1), (1, 2, 1, 4), (2, 2, 3, 4)], ids=str)
def test_gradcheck_of_a_learned_bias(way: str, shape: tuple[int, ...]) -> None:
    """The same, against differences."""
    q, k, v = (x.detach() for x in inputs(3, 4))
    table = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: run(way, q, k, v, Causal(), bias=DenseBias(t)), table)


@every_way
def test_learned_buckets_and_scalars_captured_by_a_function(way: str) -> None:
    """A tensor captured by the bias function got no gradient: pytorch/pytorch #157677, attention-gym #171."""
    q, k, v = inputs(4)
    buckets = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64).requires_grad_()
    slope = torch.tensor(0.3, dtype=torch.float64).requires_grad_()
    bias = Additive(lambda b, h, i, j: buckets[(i - j).abs().clamp(max=2)]) + Additive(
        lambda b, h, i, j: slope * (i + h) - slope * j
    )
    i, j, h = torch.arange(4)[:, None], torch.arange(4), torch.arange(2)[:, None, None]
    want = formula(q, k, v, bias=buckets[(i - j).abs().clamp(max=2)] + slope * (i + h) - slope * j)
    assert_same(run(way, q, k, v, bias=bias), want, q, k, v, buckets, slope)


@on_edges
@pytest.mark.parametrize("per_head", [False, True], ids=["[E]", "[E, H]"])
@pytest.mark.parametrize("alone", [False, True], ids=["with q, k, v", "alone"])
def test_a_learned_edge_bias_gets_its_gradient(backend: str, per_head: bool, alone: bool) -> None:
    """The same for a value an edge; pairs without edges have no logit at all."""
    q, k, v = inputs(4)
    if alone:
        q, k, v = (x.detach() for x in (q, k, v))
    edge_index = edges((0, 1), (2, 1), (3, 1), (1, 0), (0, 3), (3, 3))
    g = torch.Generator().manual_seed(2)
    values = torch.randn(*((6, 2) if per_head else (6,)), generator=g, dtype=torch.float64).requires_grad_()
    out = attention(q, k, v, mask=Graph(edge_index), bias=EdgeBias(values), backend=backend)
    table = torch.zeros(2, 4, 4, dtype=torch.float64)
    source, target = edge_index
    table = table.index_put((torch.arange(2)[:, None], target, source), values.t() if per_head else values.expand(2, 6))
    allowed = torch.zeros(4, 4, dtype=torch.bool)
    allowed[target, source] = True
    assert_same(out, formula(q, k, v, allowed, table), *([values] if alone else [q, k, v, values]))
    assert torch.autograd.gradcheck(
        lambda t: attention(q, k, v, mask=Graph(edge_index), bias=EdgeBias(t), backend=backend), values
    )


@every_way
def test_a_learned_edge_bias_on_a_dense_mask(way: str) -> None:
    """The same with edges of its own (Graphormer's): parallel edges accumulate, in the gradient too."""
    q, k, v = inputs(3)
    edge_index = edges((0, 1), (0, 1), (2, 0))
    values = torch.tensor([[0.5, 1.0], [2.0, -1.0], [1.0, 0.0]], dtype=torch.float64).requires_grad_()
    out = run(way, q, k, v, bias=EdgeBias(values, edge_index, default=-0.7))
    rows = [torch.full((2,), -0.7, dtype=torch.float64)] * 9
    rows[3], rows[2] = values[0] + values[1], values[2]
    table = torch.stack(rows, 1).reshape(2, 3, 3)
    assert_same(out, formula(q, k, v, bias=table), q, k, v, values)


# --- soft cap and sinks


def test_a_cap_of_50_takes_a_logit_of_100_to_48() -> None:
    """The cap was accepted and passed on as 0: vllm-project/vllm-metal #665."""
    assert float(Dot(softcap=50.0).finish(torch.tensor(100.0))) == pytest.approx(48.2014, abs=1e-4)


@every_way
def test_the_cap_comes_after_the_scale_and_before_the_bias(way: str) -> None:
    """The same through the operator: q.k = 200, D = 4, so the scaled score is 100."""
    q, k = torch.full((1, 1, 1, 4), 10.0), torch.stack([torch.full((4,), 5.0), torch.zeros(4)])[None, None]
    bias = DenseBias(torch.tensor([-48.0, 0.0]))
    row = run(way, q, k, identity(2), bias=bias, score=Dot(softcap=50.0))[0, 0, 0]
    close((row[0] / row[1]).log(), 0.2014, atol=1e-3)


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_capped_score_against_the_formula(way: str, dtype: torch.dtype) -> None:
    """The same, forward and gradients."""
    q, k, v = inputs(4, dtype=dtype)
    group_logits = torch.einsum("bhid,bhjd->bhij", q, k) / 2
    want = formula(q * 0, k * 0, v, torch.ones(4, 4, dtype=torch.bool).tril(), 1.5 * torch.tanh(group_logits / 1.5))
    assert_same(run(way, q, k, v, Causal(), score=Dot(softcap=1.5)), want, q, k, v)


@every_way
def test_a_sink_takes_its_share(way: str) -> None:
    """The sink was dropped by the fast path: EricLBuehler/mistral.rs #1928."""
    close(weights(way, 1, 2, score=Dot(sink=torch.zeros(1)))[0, 0], [[1 / 3, 1 / 3]], atol=1e-6)
    rows = weights(way, 1, 2, heads=2, score=Dot(sink=torch.tensor([0.0, -INF])))[0]
    close(rows[:, 0], [[1 / 3, 1 / 3], [1 / 2, 1 / 2]], atol=1e-6)


@every_way
def test_a_sink_against_one_more_key(way: str) -> None:
    """The same, forward and gradients: a sink is a key whose logit is the sink and whose value is 0."""
    q, k, v = inputs(3)
    sink = torch.tensor([0.4, -1.0], dtype=torch.float64).requires_grad_()
    more_v = torch.cat([v, v.new_zeros(2, 2, 1, 4)], 2)
    logits = torch.cat([torch.einsum("bhid,bhjd->bhij", q, k) / 2, sink[:, None, None].expand(2, 2, 3, 1)], -1)
    allowed = torch.cat([torch.ones(3, 3).tril(), torch.ones(3, 1)], 1).bool()
    want = formula(q * 0, torch.cat([k, k[:, :, :1]], 2) * 0, more_v, allowed, logits)
    assert_same(run(way, q, k, v, Causal(), score=Dot(sink=sink)), want, q, k, v, sink)
    row_weights = attention_weights(q, k, mask=Causal(), score=Dot(sink=sink))
    assert bool((row_weights.sum(-1) < 1).all())
    close(attention_weights(q * 0, k, score=Dot(sink=torch.zeros(2)))[0, 0], [[0.25] * 3] * 3)


@pytest.mark.parametrize("score", [GAT(torch.ones(1, 4), torch.ones(1, 4)), GATv2(torch.ones(1, 4))], ids=str)
def test_scores_without_a_cap_or_sink_have_no_such_argument(score: Any) -> None:
    """The same: an option that cannot be honoured cannot be given."""
    with pytest.raises(TypeError, match="softcap"):
        type(score)(torch.ones(1, 4), softcap=3.0)


# --- cross-attention


def test_positions_of_cross_attention_are_two_sequences() -> None:
    """Decoder and encoder positions were compared as one sequence: attention_with_linear_biases #5."""
    # No bias unless one is asked for.
    q, k, v = inputs(3, 5)
    assert torch.equal(attention(q, k, v, bias=NoBias()), attention(q, k, v))
    at = {"q_positions": torch.tensor([0, 10, 20]), "k_positions": torch.tensor([0, 5, 10, 15, 20])}
    gap = (at["q_positions"][:, None] - at["k_positions"]).abs()
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)[:, None, None]
    assert_same(attention(q, k, v, bias=ALiBi(2), **at), formula(q, k, v, bias=-slopes * gap), q, k, v)
    assert_same(
        attention(q, k, v, mask=Window(5, 0), **at),
        formula(q, k, v, (gap <= 5) & (at["k_positions"] <= at["q_positions"][:, None])),
        q,
        k,
        v,
    )
