"""RoPE beyond the trained length: frequencies, magnitudes, and what depends on the length of a call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from unified_attn import (
    NTK,
    Causal,
    DynamicNTK,
    Llama3,
    PositionInterpolation,
    RoPE,
    YaRN,
    attention,
    attention_with_lse,
)
from unified_attn.biases import RoPEScaling

SCALINGS = [
    PositionInterpolation(3.0),
    NTK(4.0),
    DynamicNTK(2.0, max_position=8),
    YaRN(4.0, 4096),
    Llama3(8.0, 1.0, 4.0, max_position=8192),
]
every_scaling = pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: type(s).__name__)


def rates(scaling: RoPEScaling, size: int = 64, base: float = 10000.0, length: int = 5) -> Tensor:
    return scaling.frequencies(size, base, torch.tensor(length))


# --- against transformers

PEERS: list[tuple[RoPEScaling, str, dict[str, Any]]] = [
    (PositionInterpolation(4.0), "linear", {"factor": 4.0}),
    (PositionInterpolation(1.0), "linear", {"factor": 1.0}),
    (DynamicNTK(2.0, 8), "dynamic", {"factor": 2.0}),
    (DynamicNTK(4.0, 100), "dynamic", {"factor": 4.0}),
    (YaRN(4.0, 4096), "yarn", {"factor": 4.0}),
    (YaRN(16.0, 40), "yarn", {"factor": 16.0}),
    (YaRN(40.0, 4096, beta_fast=20, beta_slow=2), "yarn", {"factor": 40.0, "beta_fast": 20, "beta_slow": 2}),
    (YaRN(40.0, 4096, mscale=0.7, mscale_all_dim=0.7), "yarn", {"factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.7}),
    (YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=0.5), "yarn", {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5}),
    (YaRN(4.0, 4096, attention_factor=0.8), "yarn", {"factor": 4.0, "attention_factor": 0.8}),
    (YaRN(1.0, 4096), "yarn", {"factor": 1.0}),
    (Llama3(8.0, 1.0, 4.0, 8192), "llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    (Llama3(32.0, 2.0, 3.0, 100), "llama3", {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0}),
]  # fmt: skip


@pytest.mark.parametrize(("size", "base"), [(64, 10000.0), (128, 500000.0), (6, 10000.0), (16, 20.0)])
@pytest.mark.parametrize(("ours", "name", "fields"), PEERS, ids=lambda x: repr(x) if isinstance(x, RoPEScaling) else "")
def test_frequencies_and_magnitude_are_those_of_transformers(
    ours: RoPEScaling, name: str, fields: dict[str, Any], size: int, base: float
) -> None:
    reason = "transformers is not installed, and its functions are what this compares with"
    pytest.importorskip("transformers", reason=reason)
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    trained = getattr(ours, "max_position", 4096)
    if name in ("yarn", "llama3"):
        fields = {**fields, "original_max_position_embeddings": trained}
    config = LlamaConfig(
        hidden_size=4 * size,
        num_attention_heads=4,
        head_dim=size,
        max_position_embeddings=trained if name == "dynamic" else 4 * trained,
        rope_parameters={"rope_type": name, "rope_theta": base, **fields},
    )
    for length in (1, 8, 9, 16, 4097):
        wanted, magnitude = ROPE_INIT_FUNCTIONS[name](config, device="cpu", seq_len=length)
        torch.testing.assert_close(rates(ours, size, base, length).float(), wanted, rtol=1e-6, atol=1e-7)
        assert ours.magnitude == pytest.approx(magnitude, rel=1e-12)


# --- numbers


@pytest.mark.parametrize(("length", "base"), [(1, 10000.0), (8, 10000.0), (9, 12590.30), (16, 31082.24)])
def test_the_base_of_dynamic_ntk_grows_with_the_length(length: int, base: float) -> None:
    """Another formula cancelled to a constant: vllm-project/vllm #3488."""
    found = rates(DynamicNTK(2.0, max_position=8), length=length)
    assert float(found[1]) ** -32 == pytest.approx(base, abs=5e-3)
    torch.testing.assert_close(found, base ** (-torch.arange(0, 64, 2).double() / 64), rtol=1e-6, atol=0.0)


def test_ntk_is_a_larger_base() -> None:
    torch.testing.assert_close(rates(NTK(4.0)), rates(RoPEScaling(), base=10000.0 * 4.0 ** (64 / 62)))
    assert float(rates(NTK(4.0))[-1] / rates(RoPEScaling())[-1]) == pytest.approx(1 / 4)  # the slowest: interpolated
    assert float(rates(NTK(4.0))[0]) == 1.0  # the fastest: as it was


@pytest.mark.parametrize(
    ("scaling", "magnitude"),
    [
        (YaRN(4.0, 4096), 1.13863),
        (YaRN(16.0, 4096), 1.27726),
        (YaRN(16.0, 4096, attention_factor=1.5), 1.5),
        (YaRN(16.0, 4096, attention_factor=1.5, mscale=2.0, mscale_all_dim=1.0), 1.5),
        (YaRN(40.0, 4096, mscale=0.707, mscale_all_dim=0.707), 1.0),
        (YaRN(16.0, 4096, mscale=2.0, mscale_all_dim=1.0), (0.2 * math.log(16) + 1) / (0.1 * math.log(16) + 1)),
        (YaRN(1.0, 4096), 1.0),
        (NTK(4.0), 1.0),
    ],
    ids=str,
)
def test_magnitudes(scaling: RoPEScaling, magnitude: float) -> None:
    """The factor was ignored, an explicit magnitude dropped, the logarithm applied twice: transformers #38224."""
    assert scaling.magnitude == pytest.approx(magnitude, abs=1e-5)
    bias = RoPE(4, scaling=scaling)
    x = torch.ones(1, 1, 1, 4)
    q, k = bias.turn(x, x, torch.tensor([[0]]), torch.tensor([[0]]))
    torch.testing.assert_close(q, x * magnitude, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(k, x * magnitude, rtol=1e-5, atol=0.0)


def test_the_magnitude_leaves_coordinates_that_do_not_turn() -> None:
    x = torch.ones(1, 1, 1, 6)
    q, _ = RoPE(6, rotary_dim=4, scaling=YaRN(4.0, 4096, attention_factor=2.0)).turn(x, x, *[torch.tensor([[0]])] * 2)
    assert q.flatten().tolist() == [2.0, 2.0, 2.0, 2.0, 1.0, 1.0]


def test_a_factor_of_one_changes_nothing() -> None:
    plain = rates(RoPEScaling())
    for scaling in (
        PositionInterpolation(1.0),
        NTK(1.0),
        YaRN(1.0, 4096),
        Llama3(1.0, 1.0, 4.0, 80),
    ):
        torch.testing.assert_close(rates(scaling, length=50), plain, rtol=1e-12, atol=0.0)
        assert scaling.magnitude == 1.0


@every_scaling
def test_a_single_pair(scaling: RoPEScaling) -> None:
    """The exponent size / (size - 2) has no value for 2 coordinates; their only frequency is 1 in any base."""
    assert rates(scaling, size=2).shape == (1,)
    if isinstance(scaling, NTK | DynamicNTK):
        assert rates(scaling, size=2, length=20).tolist() == [1.0]


# --- the operator


@every_scaling
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_depend_on_the_gap_alone(scaling: RoPEScaling, dtype: torch.dtype) -> None:
    """Angles in bfloat16 alias past 256: huggingface/transformers #29285."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 64, generator=g).to(dtype)
    bias = RoPE(64, scaling=scaling).to(dtype)
    at = (3, 1003, 30003)
    if scaling.dynamic:  # one length for all: the frequencies follow it
        keys, positions = k.expand(1, 1, 2, 64), [torch.tensor([p - 3, 40000]) for p in at]
    else:
        keys, positions = k, [torch.tensor([p - 3]) for p in at]
    only = torch.tensor([True, False])[: keys.shape[2]]
    scores = [
        float(attention_with_lse(q, keys, keys, mask=only, bias=bias, q_positions=torch.tensor([p]), k_positions=w)[1])
        for p, w in zip(at, positions, strict=True)
    ]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    assert scores[2] == pytest.approx(scores[0], abs=1e-3 if dtype == torch.float32 else 5e-3)


@every_scaling
def test_float64_inputs_turn_in_float64(scaling: RoPEScaling) -> None:
    x = torch.randn(1, 1, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    at = torch.arange(9)[None]
    wave = torch.polar(
        torch.full((9, 4), scaling.magnitude, dtype=torch.float64), at[0, :, None] * rates(scaling, size=8, length=9)
    )
    wanted = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * wave).flatten(-2)
    for got in RoPE(8, layout="interleaved", scaling=scaling).turn(x, x, at, at):
        torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13)


def qkv(length: int, dim: int = 8) -> list[Tensor]:
    g = torch.Generator().manual_seed(length)
    return list(torch.randn(3, 1, 2, length, dim, generator=g, dtype=torch.float64).unbind())


def test_a_short_input_after_a_long_one_equals_a_fresh_module() -> None:
    """After a long input the base never went back: huggingface/transformers #25104."""
    bias = RoPE(8, scaling=DynamicNTK(2.0, max_position=8))
    attention(*qkv(16), mask=Causal(), bias=bias)
    got = attention(*qkv(6), mask=Causal(), bias=bias)
    torch.testing.assert_close(got, attention(*qkv(6), mask=Causal(), bias=RoPE(8)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("start", [0, 3])
def test_a_step_of_dynamic_ntk_equals_the_last_row_of_a_whole_pass_of_its_length(start: int) -> None:
    """Old keys turned with an old base: vllm-project/vllm #5093. Here the keys of a cache are not turned yet."""
    bias = RoPE(8, scaling=DynamicNTK(2.0, max_position=4), start=start)
    q, k, v = qkv(10)
    wholes = []
    for n in range(1, 11):
        whole = attention(q[:, :, :n], k[:, :, :n], v[:, :, :n], mask=Causal(), bias=bias)
        step = attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], mask=Causal(), bias=bias)
        torch.testing.assert_close(step, whole[:, :, -1:], rtol=1e-12, atol=1e-12)
        wholes.append(whole)
    assert not torch.allclose(wholes[-1][:, :, :9], wholes[-2], atol=1e-6)  # another length, another base


@every_scaling
@pytest.mark.parametrize("chunks", [[1] * 6, [2, 4], [4, 1, 1]], ids=str)
def test_step_equals_whole(scaling: RoPEScaling, chunks: list[int]) -> None:
    bias = RoPE(8, scaling=scaling)  # dynamic: 6 keys are within the trained 8
    q, k, v = qkv(6)
    done, pieces = 0, []
    for n in chunks:
        done += n
        pieces.append(attention(q[:, :, done - n : done], k[:, :, :done], v[:, :, :done], mask=Causal(), bias=bias))
    torch.testing.assert_close(torch.cat(pieces, 2), attention(q, k, v, mask=Causal(), bias=bias))


@every_scaling
def test_keys_may_be_turned_before_they_are_cached_unless_the_length_counts(scaling: RoPEScaling) -> None:
    bias = RoPE(8, scaling=scaling)
    k, at = qkv(12)[0], torch.arange(12)[None]
    whole = bias.turn(k, k, at, at)[1]
    pieces = [
        bias.turn(k[:, :, n : n + 1], k[:, :, n : n + 1], at[:, n : n + 1], at[:, n : n + 1])[1] for n in range(12)
    ]
    assert torch.allclose(torch.cat(pieces, 2), whole) is bias.turns_by_position is not scaling.dynamic


def test_no_keys_and_no_queries() -> None:
    for queries, keys in ((0, 3), (3, 0), (0, 0)):
        q, k = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4)
        for scaling in SCALINGS:
            assert attention(q, k, k, bias=RoPE(4, scaling=scaling)).shape == q.shape


@pytest.mark.parametrize(
    "scaling",
    [pytest.param(s, marks=() if isinstance(s, DynamicNTK | YaRN) else pytest.mark.slow) for s in SCALINGS],
    ids=lambda s: type(s).__name__,
)
def test_growing_lengths_compile_at_most_twice(scaling: RoPEScaling) -> None:
    torch._dynamo.reset()
    counts = CompileCounter()
    bias = RoPE(8, scaling=scaling)
    layer: Callable[[Tensor], Tensor] = lambda x: attention(x, x, x, mask=Causal(), bias=bias)  # noqa: E731
    compiled = torch.compile(layer, backend=counts, fullgraph=True)
    for length in (5, 7, 12, 20):
        x = torch.randn(2, 2, length, 8)
        torch.testing.assert_close(compiled(x), layer(x))
    assert counts.frame_count <= 2
    torch._dynamo.reset()


class Halved(RoPEScaling):
    """A scaling of one's own."""

    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        return super().frequencies(size, base, length) / 2


def test_a_scaling_of_ones_own() -> None:
    x, at = qkv(5)[0], torch.arange(5)[None]
    got = RoPE(8, scaling=Halved()).turn(x, x, at, at)
    want = RoPE(8, scaling=PositionInterpolation(2.0)).turn(x, x, at, at)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("scaling", [NTK(1e150), DynamicNTK(1e150, 1)])
def test_a_base_beyond_all_numbers(scaling: RoPEScaling) -> None:
    """1e200 * 1e150 ^ (8 / 6) is 1e400, but its powers from 0 to -3/4 are numbers."""
    want = torch.tensor([1.0, 1e-100, 1e-200, 1e-300], dtype=torch.float64)
    torch.testing.assert_close(rates(scaling, size=8, base=1e200, length=2), want, rtol=1e-10, atol=0)


# --- errors and representations

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: PositionInterpolation(0.5), ValueError, "factor is 0.5; it says how many times as long"),
    (lambda: NTK(math.nan), ValueError, "factor is nan"),
    (lambda: NTK(torch.tensor(2.0)), TypeError, r"factor is \[\] float32; give a number"),
    (lambda: DynamicNTK(2.0, 0), ValueError, "max_position is 0; it must be at least 1"),
    (lambda: DynamicNTK(2.0, 8.0), TypeError, "max_position is 8.0; give the length"),
    (lambda: DynamicNTK(2.0), TypeError, "max_position"),
    (lambda: YaRN("4", 8), TypeError, "factor is '4'"),
    (lambda: YaRN(4.0, 8, beta_fast=1, beta_slow=1), ValueError, "beta_fast is 1 and beta_slow 1"),
    (lambda: YaRN(4.0, 8, beta_fast=None), TypeError, "beta_fast is None"),
    (lambda: YaRN(4.0, 8, attention_factor=0.0), ValueError, "attention_factor is 0.0; it must be positive"),
    (lambda: YaRN(4.0, 8, mscale=1.0), ValueError, "mscale is 1.0 and mscale_all_dim None: the magnitude is a ratio"),
    (lambda: YaRN(4.0, 8, mscale_all_dim=1.0), ValueError, "give both or neither"),
    (lambda: YaRN(4.0, 8, truncate=False), TypeError, "truncate"),
    (lambda: Llama3(8.0, 4.0, 1.0, 8192), ValueError, "high_freq_factor is 1.0 and low_freq_factor 4.0"),
    (lambda: Llama3(8.0, 0.0, 1.0, 8192), ValueError, "low_freq_factor is 0.0; it must be positive"),
    (lambda: RoPE(8, scaling={"factor": 2.0}), TypeError, "scaling is {'factor': 2.0}; give a scaling object"),
    (lambda: RoPE(8, scaling=YaRN), TypeError, "give a scaling object such as YaRN"),
    (lambda: RoPE(8, base=1.0, scaling=YaRN(4.0, 8)), ValueError, "base is 1.0; YaRN asks how often"),
    (lambda: RoPE(8, base=math.inf), ValueError, "base is inf; it must be positive and finite"),
    (lambda: RoPE(8, base=math.nan), ValueError, "base is nan; it must be positive and finite"),
    (lambda: RoPE(8, start=2**62), ValueError, "start is 4611686018427387904; it must be below"),
    (lambda: RoPE(8, start=-(2**64)), ValueError, r"it must be below 2 \*\* 62 in absolute value"),
    (lambda: DynamicNTK(2.0, 2**64), ValueError, "max_position is 18446744073709551616; it must be below"),
    (lambda: RoPE(8, scaling=Short()), ValueError, r"gives frequencies \[3\]; it must be \[4\]"),
]


class Short(RoPEScaling):
    def frequencies(self, size: int, base: float, length: Tensor) -> Tensor:
        return super().frequencies(size, base, length)[1:]


@pytest.mark.parametrize(("make", "error", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_a_wrong_input_raises_at_once(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@every_scaling
def test_scalings_are_values(scaling: RoPEScaling) -> None:
    assert eval(repr(scaling)) == scaling
    assert repr(scaling) in repr(RoPE(4, scaling=scaling))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scaling.factor = 3.0
    assert list(RoPE(4, scaling=scaling).state_dict()) == []


def test_the_plain_rope_is_written_without_a_scaling() -> None:
    assert repr(RoPE(4)) == "RoPE(4, layout='half')"
    assert RoPE(4, scaling=NTK(2.0)).scaling == NTK(2.0)
    assert repr(RoPE(4, scaling=NTK(2.0), start=1)) == "RoPE(4, layout='half', scaling=NTK(factor=2.0), start=1)"
