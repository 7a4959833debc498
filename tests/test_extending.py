"""One's own mask, bias, score and back end: about three lines each, and no file of the library is touched."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases.tools import WAYS, assert_same, close, complete, edges, formula, inputs, run, weights
from unified_attn import (
    GAT,
    Additive,
    ALiBi,
    Backend,
    Bias,
    Causal,
    DenseBias,
    DenseMask,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    Mask,
    NoBias,
    PairVectors,
    Score,
    UnsupportedError,
    Where,
    Window,
    attention,
    attention_with_lse,
    explain,
    graph_attention,
)

every_way = pytest.mark.parametrize("way", WAYS)
on_pairs = pytest.mark.parametrize("way", ["reference", "reference on edges", "scatter"])

recency = Additive(lambda b, h, i, j: -0.1 * (i - j).abs())
strided = Where(lambda b, h, i, j: (i - j) % 4 == 0)


class Strided(Mask):
    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j) % 4 == 0


class Recency(Bias):
    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return -0.1 * (i - j).abs()


class L1(Score):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return -(q - k).abs().sum(-1)


class Mine(Backend):
    """Plain attention, written anew; it refuses what it does not know."""

    def unsupported(self, problem: Any) -> list[str]:
        return ["edges are not dense"] if problem.has_edges else []

    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        low = problem.dense()
        logits = low.logits()
        return logits.softmax(-1) @ low.values(), logits.logsumexp(-1)


N = torch.arange(9)
GAP = (N[:, None] - N).abs()


# --- masks


@every_way
@pytest.mark.parametrize("mask", [strided, Strided()], ids=["Where", "Mask"])
def test_a_mask_of_ones_own(way: str, mask: Mask) -> None:
    q, k, v = inputs(9)
    assert_same(run(way, q, k, v, mask), formula(q, k, v, GAP % 4 == 0), q, k, v)
    close(weights(way, 5, 5, mask)[0, 0, 0], [0.5, 0, 0, 0, 0.5])


@every_way
@pytest.mark.parametrize("mask", [strided, Strided()], ids=["Where", "Mask"])
def test_a_mask_of_ones_own_composes(way: str, mask: Mask) -> None:
    q, k, v = inputs(9)
    earlier = N[:, None] >= N
    for composed, allowed in (
        (Causal() & mask, earlier & (GAP % 4 == 0)),
        (mask & Causal() & Window(4, 0), earlier & (GAP % 4 == 0) & (GAP <= 4)),
        (mask | Causal(), earlier | (GAP % 4 == 0)),
        (~mask, GAP % 4 != 0),
    ):
        assert_same(run(way, q, k, v, composed), formula(q, k, v, allowed), q, k, v)


def test_masks_of_ones_own_print_what_they_are() -> None:
    def parity(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j) % 2 == 0

    assert repr(Where(parity)) == "Where(parity)"
    assert repr(Causal() & Where(parity) & ~Window(1, 0)) == "Causal() & Where(parity) & ~Window(left=1, right=0)"
    assert repr(Causal() & Strided()) == "Causal() & Strided()"
    assert Where(parity).draw(3, 3) == "#.#\n.#.\n#.#"
    assert (Strided() & Causal()).draw(5, 5).splitlines()[4] == "#...#"


@every_way
def test_a_mask_that_differs_by_batch_and_head(way: str) -> None:
    class Mixed(Mask):
        def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (i + j + b + h) % 2 == 0

    q, k, v = inputs(5)
    b, h = torch.arange(2)[:, None, None, None], torch.arange(2)[:, None, None]
    allowed = (N[:5, None] + N[:5] + b + h) % 2 == 0
    assert_same(run(way, q, k, v, Mixed()), formula(q, k, v, allowed), q, k, v)


@every_way
def test_a_mask_of_ones_own_that_holds_a_tensor_counts_rows(way: str) -> None:
    class Documents(Mask):
        space = "row"

        def __init__(self, ids: Tensor) -> None:
            super().__init__()
            self.register_buffer("ids", ids, persistent=False)

        def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return self.ids[i] == self.ids[j]

    ids = torch.tensor([0, 0, 0, 1, 1])
    q, k, v = inputs(5)
    assert_same(run(way, q, k, v, Documents(ids)), formula(q, k, v, ids[:, None] == ids), q, k, v)


# --- biases


@every_way
@pytest.mark.parametrize("bias", [recency, Recency()], ids=["Additive", "Bias"])
def test_a_bias_of_ones_own(way: str, bias: Bias) -> None:
    q, k, v = inputs(9, heads=8)
    slopes = 2.0 ** -torch.arange(1, 9, dtype=torch.float64)[:, None, None]
    assert_same(run(way, q, k, v, bias=bias), formula(q, k, v, bias=-0.1 * GAP.double()), q, k, v, atol=1e-6)
    both = formula(q, k, v, GAP % 4 == 0, -0.1 * GAP.double() - slopes * GAP)
    for sum_ in (ALiBi(8) + bias, bias + ALiBi(8), NoBias() + bias + ALiBi(8)):
        assert_same(run(way, q, k, v, strided, bias=sum_), both, q, k, v, atol=1e-6)


def test_biases_of_ones_own_print_what_they_are() -> None:
    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return -0.1 * (i - j).abs()

    total = ALiBi(8) + Additive(near) + Recency()
    assert repr(total) == "ALiBi(8) + Additive(near) + Recency()"
    assert [type(term) for term in total.terms] == [ALiBi, Additive, Recency]


@every_way
def test_a_bias_of_ones_own_that_learns(way: str) -> None:
    class Learned(Bias):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor([0.5, -0.5], dtype=torch.float64))

        def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
            return self.slope[h] * (i - j)

    q, k, v = inputs(5)
    bias = Learned()
    assert [name for name, _ in (ALiBi(2) + bias).named_parameters()] == ["_terms.1.slope"]
    want = formula(q, k, v, bias=bias.slope[:, None, None] * (N[:5, None] - N[:5]))
    assert_same(run(way, q, k, v, bias=bias), want, q, k, v, bias.slope)


@pytest.mark.parametrize("backend", ["reference", "scatter", "csr"])
def test_a_bias_of_ones_own_sees_the_number_of_the_edge(backend: str) -> None:
    values = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64).requires_grad_()

    class Tied(Bias):
        def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
            assert edge is not None
            return values[edge]

    q, k, v = inputs(3)
    graph = Graph(edges((0, 1), (2, 1), (1, 1), (0, 2)))
    want = attention(q, k, v, mask=graph, bias=EdgeBias(values), backend="reference")
    assert_same(attention(q, k, v, mask=graph, bias=Tied(), backend=backend), want, q, k, v, values)


@every_way
def test_a_turn_of_ones_own(way: str) -> None:
    class Scaled(Bias):
        def turn(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
            return q * (1.0 + q_positions)[:, None, :, None], k

    q, k, v = inputs(4)
    want = formula(q * (1.0 + torch.arange(4.0))[:, None], k, v)
    assert_same(run(way, q, k, v, bias=Scaled() + NoBias()), want, q, k, v)
    with pytest.raises(ValueError, match="both turn q and k; keep one of them"):
        Scaled() + Scaled()


# --- scores


@on_pairs
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_a_score_of_ones_own(way: str, kv_heads: int) -> None:
    q, k, v = inputs(4, kv_heads=kv_heads)
    near = -(q[:, :, :, None] - k.repeat_interleave(2 // kv_heads, 1)[:, :, None]).abs().sum(-1)
    want = formula(q * 0, k * 0, v, N[:4, None] >= N[:4], near - 0.1 * GAP[:4, :4])
    assert_same(run(way, q, k, v, Causal(), score=L1(), bias=recency), want, q, k, v, atol=1e-6)
    half = formula(q * 0, k * 0, v, bias=near / 2)
    assert_same(run(way, q, k, v, score=L1(), scale=0.5), half, q, k, v)


@on_pairs
def test_a_score_that_looks_at_one_side_alone(way: str) -> None:
    class Popular(Score):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return k.sum(-1)

    q, k, v = inputs(3, 4)
    want = formula(q * 0, k * 0, v, bias=k.sum(-1)[:, :, None])
    assert_same(run(way, q, k, v, score=Popular()), want, k, v)


def test_a_score_of_ones_own_runs_where_it_can() -> None:
    q, k, v = inputs(4)
    told = explain(q, k, v, mask=complete(4, 4), score=L1())
    assert told.backend == "scatter"
    assert told.reasons["csr"] == ("the score L1() has no fused form (Dot, GAT and GATv2 have)",)
    with pytest.raises(UnsupportedError, match="no fused form"):
        attention(q, k, v, mask=complete(4, 4), score=L1(), backend="csr")
    x = torch.zeros(4, 2, 4, dtype=torch.float64)
    assert graph_attention(x, x, x, complete(4, 4), score=L1()).shape == (4, 2, 4)


def test_a_score_of_ones_own_with_parameters_and_a_scale() -> None:
    class Bilinear(Score):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4))

        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return ((q @ self.matrix) * k).sum(-1)

        def scale(self, head_dim: int) -> float:
            return 1.0 / head_dim

    q, k, v = inputs(4)
    score = Bilinear()
    want = formula(q @ score.matrix, k, v, scale=0.25)
    for way in ("reference", "reference on edges", "scatter"):
        assert_same(run(way, q, k, v, score=score), want, q, k, v, score.matrix)


# --- back ends


def test_a_back_end_of_ones_own() -> None:
    q, k, v = inputs(9)
    for mask, bias, score in (
        (None, None, None),
        (Causal() & strided, ALiBi(2) + recency, None),
        (Causal(), None, L1()),
    ):
        ours = attention(q, k, v, mask=mask, bias=bias, score=score, backend=Mine())
        assert_same(ours, attention(q, k, v, mask=mask, bias=bias, score=score, backend="reference"), q, k, v)
    assert attention_with_lse(q, k, v, backend=Mine())[1].shape == (2, 2, 9)


def test_explain_knows_ones_own_back_end() -> None:
    q, k, v = inputs(4)
    told = explain(q, k, v, mask=Causal(), backend=Mine())
    assert told.backend == "mine"
    assert told.reasons["mine"] == ()
    assert str(told).splitlines()[:2] == ["mine runs: 'mine' was named", "  mine       chosen"]
    told = explain(q, k, v, mask=complete(4, 4), backend=Mine())
    assert told.backend is None
    assert str(told).splitlines()[:2] == ["nothing runs: 'mine' was named", "  mine       no: edges are not dense"]


def test_ones_own_back_end_never_falls_back() -> None:
    q, k, v = inputs(4)
    with pytest.raises(
        UnsupportedError, match=re.escape("back end 'mine' cannot run this: edges are not dense")
    ) as error:
        attention(q, k, v, mask=complete(4, 4), backend=Mine())
    assert error.value.backend == "mine"
    assert error.value.reasons == ("edges are not dense",)


def test_ones_own_back_end_can_have_a_name_and_a_note() -> None:
    class Noted(Mine):
        name = "my kernel"

        def note(self) -> str:
            return "found 3 of them"

    q, k, v = inputs(4)
    told = str(explain(q, k, v, backend=Noted()))
    assert told.splitlines()[0] == "my kernel runs: 'my kernel' was named"
    assert "my kernel  chosen [found 3 of them]" in told


# --- clean errors where one's own returns the wrong kind

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {}


def wrong(base: type, method: str, answer: Any) -> Any:
    return type("Wrong", (base,), {method: lambda self, *arguments: answer})()


WRONG["a mask of floats"] = (
    {"mask": wrong(Mask, "allow", torch.ones(4, 4))},
    TypeError,
    "Wrong must return a bool tensor (True = may attend), not torch.float32",
)
WRONG["a mask of nothing"] = ({"mask": wrong(Mask, "allow", None)}, TypeError, "Wrong must return a bool tensor")
WRONG["a mask of another shape"] = (
    {"mask": Causal() & wrong(Mask, "allow", torch.ones(3, 3, dtype=torch.bool))},
    ValueError,
    "Wrong returned shape [3, 3], which does not broadcast to [B, Hq, Nq, Nk] = [2, 2, 4, 4]",
)
WRONG["a bias of ints"] = (
    {"bias": wrong(Bias, "add", torch.ones(4, 4).long())},
    TypeError,
    "Wrong must return a float tensor to add to the logits, not torch.int64",
)
WRONG["a bias of another shape"] = (
    {"bias": ALiBi(2) + wrong(Bias, "add", torch.ones(5, 4))},
    ValueError,
    "Wrong returned shape [5, 4], which does not broadcast to [B, Hq, Nq, Nk] = [2, 2, 4, 4]",
)
WRONG["a class of one's own"] = ({"score": L1}, TypeError, "score is the class L1, not an object of it; give a Score")
WRONG["a back end's class"] = ({"backend": Mine}, TypeError, "give a name or a Backend object")


@pytest.mark.parametrize(("options", "error", "text"), WRONG.values(), ids=WRONG)
def test_ones_own_that_returns_the_wrong_kind(options: dict[str, Any], error: type[Exception], text: str) -> None:
    q = torch.zeros(2, 2, 4, 4)
    with pytest.raises(error, match=re.escape(text)):
        attention(q, q, q, **options)


SCORES_GONE_WRONG = {
    "of another shape": lambda q, k: q.new_zeros(2, 2, 4, 3),
    "without a sum": lambda q, k: q * k,
    "of nothing": lambda q, k: None,
}


@pytest.mark.parametrize("logits", SCORES_GONE_WRONG.values(), ids=SCORES_GONE_WRONG)
@pytest.mark.parametrize("mask", [None, complete(4, 4)], ids=["dense", "graph"])
def test_a_score_that_returns_the_wrong_kind(logits: Any, mask: Any) -> None:
    class Odd(Score):
        def logits(self, q: Tensor, k: Tensor) -> Tensor:
            return logits(q, k)

    q = torch.zeros(2, 2, 4, 4)
    with pytest.raises((TypeError, ValueError), match="Odd must return"):
        attention(q, q, q, mask=mask, score=Odd())


@pytest.mark.parametrize(
    "answer",
    [None, torch.zeros(2, 2, 4, 4), (torch.zeros(2, 2, 4, 3), torch.zeros(2, 2, 4)), (torch.zeros(2, 2, 4, 4), None)],
    ids=["nothing", "one tensor", "another shape", "no lse"],
)
def test_a_back_end_that_returns_the_wrong_kind(answer: Any) -> None:
    class Odd(Mine):
        def run(self, problem: Any) -> tuple[Tensor, Tensor]:
            return answer

    q = torch.zeros(2, 2, 4, 4)
    with pytest.raises((TypeError, ValueError), match=r"back end 'odd' must return"):
        attention_with_lse(q, q, q, backend=Odd())


def test_a_back_end_may_leave_out_the_lse_where_nobody_asks_for_it() -> None:
    class Short(Mine):
        def run(self, problem: Any) -> tuple[Tensor, Tensor | None]:
            out, lse = super().run(problem)
            return out, lse if problem.needs_lse else None

    q = torch.randn(2, 2, 4, 4)
    torch.testing.assert_close(attention(q, q, q, backend=Short()), attention(q, q, q, backend=Mine()))
    assert attention_with_lse(q, q, q, backend=Short())[1].shape == (2, 2, 4)
    sink = Dot(sink=torch.zeros(2))  # needs one
    torch.testing.assert_close(
        attention(q, q, q, score=sink, backend=Short()), attention(q, q, q, score=sink, backend="reference")
    )


def test_reasons_that_are_no_list_are_refused() -> None:
    class Odd(Mine):
        def unsupported(self, problem: Any) -> Any:
            return "needs CUDA"

    q = torch.zeros(2, 2, 4, 4)
    with pytest.raises(TypeError, match=r"'odd'.*a list of sentences"):
        attention(q, q, q, backend=Odd())


def test_what_is_abstract_says_what_is_missing() -> None:
    for base, method in ((Mask, "allow"), (Score, "logits"), (Backend, "run|unsupported")):
        with pytest.raises(TypeError, match=method):
            type("Half", (base,), {})()
    assert DenseMask(torch.ones(1, 1, dtype=torch.bool)).draw(1, 1) == "#"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda p: GATv2(p), ["att"]),
        (lambda p: GAT(p, p), ["att_src"]),
        (lambda p: EdgeBias(p), ["values"]),
        (lambda p: DenseBias(p), ["table"]),
        (lambda p: Dot(sink=p), ["_sink"]),
        (lambda p: PairVectors(p), ["key"]),
    ],
)
def test_a_parameter_given_to_a_bias_or_score_stays_one(make: Any, names: list[str]) -> None:
    """Held as a mere buffer it would be neither trained nor saved, without a word, and lost at the first `.to()`."""
    shape = {"_sink": (2,), "key": (3, 2, 4)}.get(names[0], (2, 4))
    parameter = torch.nn.Parameter(torch.randn(shape))
    layer = torch.nn.Module()
    layer.part = make(parameter)
    assert [name for name, _ in layer.named_parameters()] == [f"part.{name}" for name in names]
    assert f"part.{names[0]}" in layer.state_dict()
    layer.to(torch.float64)
    assert next(layer.parameters()) is parameter
    assert getattr(layer.part, names[0]) is parameter
    assert not list(make(parameter.detach()).parameters())
