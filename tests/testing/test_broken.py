"""Each law of the kit is broken once on purpose, and the kit must name it."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases.tools import fresh
from unified_attn import ALiBi, Backend, Bias, Causal, DenseMask, Dot, Graph, Mask, Score
from unified_attn.masks.base import Candidates, Prefix
from unified_attn.rows import PairList
from unified_attn.scores import Form
from unified_attn.testing import LawBroken, check_backend, check_bias, check_mask, check_score

GRAPH = Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]))


def broken(check: Callable[..., None], thing: Any, law: str, **options: Any) -> str:
    with pytest.raises(LawBroken) as error:
        check(thing, **options)
    assert error.value.law == law
    assert str(error.value) == f"law broken: {law}: {error.value.detail}"
    return error.value.detail


class Near(Mask):
    """|i - j| <= 1, without fault."""

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= 1


def near_pairs(shape: Any, *, twice: bool = False, missing: bool = False) -> PairList:
    offset = shape.num_keys - shape.num_queries
    pairs = [
        (i, j)
        for i, j in itertools.product(range(shape.num_queries), range(shape.num_keys))
        if abs(i + offset - j) <= 1
    ]
    pairs = pairs[: len(pairs) - missing] + pairs[:1] * twice
    query, key = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
    return PairList(query, key, shape.num_queries, shape.num_keys)


class Floats(Mask):
    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ((i - j).abs() <= 1).float()


class Dims(Near):
    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        size = j.shape[3]  # wants four dimensions
        return (i - j).abs() <= min(size, 1)


class ByPosition(Near):
    """Lists otherwise than it draws: it counts from the smallest key at hand."""

    def on(self, pairs: Any) -> Tensor:
        gap = pairs.query_position - pairs.key_position
        return (gap.abs() <= 1) if pairs.is_dense else (gap.abs() <= 2)


class Random(Near):
    calls = 0

    def on(self, pairs: Any) -> Tensor:
        allowed = super().on(pairs)
        if pairs.is_dense:
            self.calls += 1
        return allowed if self.calls < 2 else ~allowed


class Band(Near):
    def band(self) -> Any:
        return 1, 2


class Drawn(Near):
    def draw(self, *sizes: int, **options: int) -> str:
        return super().draw(*sizes, **options).replace(".", "#")


class WrongPrefix(Near):
    def prefix(self, shape: Any) -> Prefix:
        return Prefix(1)


class Missing(Near):
    def candidates(self, shape: Any) -> Candidates:
        return Candidates(near_pairs(shape, missing=True))


class TooMany(Near):
    def candidates(self, shape: Any) -> Candidates:
        everything = torch.ones(shape.num_queries, shape.num_keys).nonzero().t()
        return Candidates(PairList(*everything, shape.num_queries, shape.num_keys))


class Twice(Near):
    def candidates(self, shape: Any) -> Candidates:
        return Candidates(near_pairs(shape, twice=True))


class BadNot(Near):
    def __invert__(self) -> Mask:
        return self


class BadAnd(Near):
    def __and__(self, other: Mask) -> Mask:
        return self


class BadOr(Near):
    def __or__(self, other: Mask) -> Mask:
        return self


class Forgets(Near):
    """What it holds is lost when it is copied."""

    def __init__(self, reach: int = 1) -> None:
        super().__init__()
        self.reach = reach

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.reach

    def __deepcopy__(self, memo: Any) -> Mask:
        return Forgets(0)


class Address(Near):
    def __repr__(self) -> str:
        return object.__repr__(self)


MASKS = [
    (Floats(), "allow returns a bool tensor"),
    (Dims(), "allow takes index tensors of any shape"),
    (ByPosition(), "listed pairs are those of the table"),
    (Random(), "two calls agree"),
    (Drawn(), "the drawing is the table"),
    (Band(), "the band is exact"),
    (WrongPrefix(), "the prefix is exact"),
    (Missing(), "candidates are a superset, and the rest makes them exact"),
    (TooMany(), "candidates are a superset, and the rest makes them exact"),
    (Twice(), "candidates hold no pair twice"),
    (BadNot(), "not is the complement"),
    (BadAnd(), "and is both"),
    (BadOr(), "or is either"),
    (Forgets(), "copies mean the same"),
    (Address(), "the repr is readable"),
    (torch.ones(2, 2) > 0, "masks are masks"),
]


@pytest.mark.parametrize(("mask", "law"), MASKS, ids=lambda x: type(x).__name__ if isinstance(x, Mask) else None)
def test_a_broken_mask_is_named(mask: Any, law: str) -> None:
    broken(check_mask, mask, law, sizes=[(5, 5), (3, 8)])


def test_a_whole_mask_passes_and_messages_name_sizes_and_pair() -> None:
    check_mask(Near())
    detail = broken(check_mask, Band(), "the band is exact", sizes=[(1, 1), (3, 4)])
    assert detail == "Band() at 3 queries x 4 keys: got True at [0, 0, 0, 3], wanted False"


def test_sizes_that_nobody_takes_are_no_law() -> None:
    with pytest.raises(ValueError, match=r"takes none of the sizes that were tried \(5 queries x 5 keys\): give sizes"):
        check_mask(DenseMask(torch.ones(3, 3, dtype=torch.bool)), sizes=[(5, 5)])


# --- biases


class Slope(Bias):
    """Learns one number a head, without fault."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.3, -0.7], dtype=dtype))

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor | None:
        return self.slope.float()[h] * (i - j) if self.slope.dtype == torch.bfloat16 else self.slope[h] * (i - j)


class Integers(Slope):
    def add(self, *index: Any) -> Tensor:
        return index[2] - index[3]


class NaNs(Slope):
    def add(self, *index: Any) -> Tensor:
        return super().add(*index).masked_fill(index[2] == index[3], torch.nan)


class Least(Slope):
    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return self.slope[h] * (j - j.min())


class Restless(Slope):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def add(self, *index: Any) -> Tensor:
        self.calls += 1
        return super().add(*index) + self.calls


class Detached(Slope):
    def add(self, *index: Any) -> Tensor:
        return super().add(*index).detach()


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / 2


class WrongGradient(Slope):
    def add(self, *index: Any) -> Tensor:
        return _Half.apply(super().add(*index))


class Rounded(Bias):
    """A constant that follows the dtype of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("constant", torch.tensor(1 / 3), persistent=False)

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        distance = (i - j).abs().to(self.constant.dtype)
        return self.constant * distance


class Plainly(Slope):
    """As one writes it: the product is made in the weight's own dtype. Without fault."""

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return self.slope[h] * (i - j).abs()


class PlainlyDetached(Plainly):
    def add(self, *index: Any) -> Tensor:
        return super().add(*index).detach()


class Coarse(Slope):
    """Learned, and far off in half precision."""

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        near = 0.3 if self.slope.dtype == torch.bfloat16 else 0.27
        return self.slope[h].double() * (i - j).abs() * near


class Absolute(Slope):
    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return self.slope.to(torch.float32 if self.slope.dtype == torch.bfloat16 else self.slope.dtype)[h] * i * j


class Narrow(Bias):
    def turn(self, q: Tensor, k: Tensor, *positions: Tensor) -> tuple[Tensor, Tensor]:
        return q.float(), k.float()


class Jumbled(Slope):
    """Its sums depend on the order."""

    def __add__(self, other: Bias) -> Bias:
        return self


BIASES = [
    (Integers(), "a bias adds floats", {}),
    (NaNs(), "values are finite or -inf", {}),
    (Least(), "listed values are those of the table", {}),
    (Restless(), "two calls agree", {}),
    (Detached(), "what is learned gets its gradient", {}),
    (WrongGradient(), "gradients are those of finite differences", {}),
    (Rounded(), "half precision rounds what is learned alone", {}),
    (PlainlyDetached(), "what is learned gets its gradient", {}),
    (Coarse(), "half precision rounds what is learned alone", {}),
    (Absolute(), "a relative bias does not see a shift", {"relative": True}),
    (Narrow(), "a turn keeps shape and dtype", {}),
    (Jumbled(), "sums commute", {}),
    (Dot(), "biases are biases", {}),
]


@pytest.mark.parametrize(("bias", "law", "options"), BIASES, ids=lambda x: type(x).__name__)
def test_a_broken_bias_is_named(bias: Any, law: str, options: Any) -> None:
    broken(check_bias, bias, law, sizes=[(3, 3), (2, 4)], **options)


def test_a_whole_bias_passes() -> None:
    check_bias(Slope(), relative=True)
    check_bias(Slope(torch.float64), mask=GRAPH)
    check_bias(Plainly(), relative=True)
    check_bias(Plainly() + ALiBi(2))


@pytest.mark.parametrize(("check", "kind"), [(check_mask, Causal), (check_bias, ALiBi), (check_score, Dot)])
def test_a_class_is_no_object_of_it(check: Any, kind: Any) -> None:
    with pytest.raises(LawBroken, match=f"got the class {kind.__name__}, not an object of it; give an object of a sub"):
        check(kind)


# --- scores


class L1(Score):
    """Without fault."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return -(q - k).abs().sum(-1)


class Cosines(L1):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q * k


class Single(L1):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).float()


class Infinite(L1):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).abs().log() * torch.inf


class Mean(L1):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        raw = super().logits(q, k)
        return raw - raw.mean(-1, keepdim=True)


class Noisy(L1):
    calls = 0

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        self.calls += 1
        return super().logits(q, k) + float(self.calls == 2)


class OtherForm(Dot):
    def form(self, q: Tensor, k: Tensor, key_vectors: Tensor | None) -> Form:
        return Form(q, k, key_vectors, cap=3.0)


class NoForm(Dot):
    def form(self, q: Tensor, k: Tensor, key_vectors: Tensor | None) -> None:
        return None


class Forgetful(Dot):
    """Its form forgets the vectors of edges."""

    def form(self, q: Tensor, k: Tensor, key_vectors: Tensor | None) -> Form:
        return Form(q, k, None)


class Stuck(L1):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


class Bent(L1):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return _Half.apply(super().logits(q, k))


SCORES = [
    (Cosines(), "a score is one number a pair", {}),
    (Single(), "a score keeps the dtype", {}),
    (Infinite(), "a score is finite", {}),
    (Mean(), "a pair's score is its own", {}),
    (Noisy(), "two calls agree", {}),
    (OtherForm(), "the fused form is the same score", {}),
    (NoForm(), "fused says whether there is a form", {}),
    (Forgetful(), "the fused form is the same score", {"mask": GRAPH}),
    (Stuck(), "what is learned gets its gradient", {}),
    (Bent(), "gradients are those of finite differences", {}),
    (nn.Identity(), "scores are scores", {}),
]


@pytest.mark.parametrize(("score", "law", "options"), SCORES, ids=lambda x: type(x).__name__)
def test_a_broken_score_is_named(score: Any, law: str, options: Any) -> None:
    broken(check_score, score, law, sizes=[(3, 3), (2, 4)], **options)


def test_a_whole_score_passes() -> None:
    check_score(L1())
    check_score(L1(), mask=GRAPH)


# --- back ends


class Plain(Backend):
    """Dense attention alone, without fault."""

    def unsupported(self, problem: Any) -> list[str]:
        return ["edges are not dense"] if problem.has_edges else []

    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        low = problem.dense()
        return self.finish(low, self.logits(low))

    def logits(self, low: Any) -> Tensor:
        return low.logits()

    def finish(self, low: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        some = (logits != -torch.inf).any(-1, keepdim=True)
        safe = logits.masked_fill(~some, 0.0)
        weights = safe.softmax(-1) * some
        factors = low.dropout()
        weights = weights if factors is None else weights * factors
        return weights @ low.values(), safe.logsumexp(-1).masked_fill(~some[..., 0], -torch.inf)


class NoMask(Plain):
    def logits(self, low: Any) -> Tensor:
        logits = low.logits()
        some = (logits != -torch.inf).any(-1, keepdim=True)
        return torch.where((logits == -torch.inf) & some, 0.0, logits)


class NaNRows(Plain):
    def finish(self, low: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        factors = low.dropout()
        return logits.softmax(-1) * (1.0 if factors is None else factors) @ low.values(), logits.logsumexp(-1)


class NoScale(Plain):
    """It would scale the bias with the score, or neither."""

    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        return super().run(replace(problem, scale=1.0))


class LowLse(Plain):
    def finish(self, low: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super().finish(low, logits)
        return out, lse.masked_fill(lse == -torch.inf, -1e30)


class Base2(Plain):
    def finish(self, low: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super().finish(low, logits)
        return out, lse / torch.log(torch.tensor(2.0, dtype=lse.dtype))


class NoGradient(Plain):
    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        out, lse = super().run(problem)
        return out, lse.detach()


class NoDropout(Plain):
    def finish(self, low: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        return super().finish(replace(low, dropout_p=0.0), logits)


class DropsLse(Plain):
    def finish(self, low: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super().finish(low, logits)
        return out, lse if low.dropout_p == 0.0 else lse + 1.0


class Flickers(Plain):
    def __init__(self) -> None:
        self.calls = 0

    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        self.calls += 1
        out, lse = super().run(problem)
        return out + 1e-13 * self.calls, lse


class ReadsHidden(Plain):
    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        out, lse = super().run(problem)
        return out + 0.0 * problem.v.sum(), lse


class Tiled(Plain):
    """Query head h reads key head h % Hkv, where there are groups."""

    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        group = problem.q.shape[1] // problem.k.shape[1]
        k, v = (x.repeat(1, group, 1, 1) for x in (problem.k, problem.v))
        return super().run(replace(problem, k=k, v=v))


class Fails(Plain):
    def run(self, problem: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no kernel for this")


class Unsure(Plain):
    """Its reasons change from call to call."""

    calls = 0

    def unsupported(self, problem: Any) -> list[str]:
        Unsure.calls += 1
        return [f"reason {Unsure.calls}"]


class Speechless(Plain):
    def unsupported(self, problem: Any) -> list[str]:
        return [""]


BACKENDS = [
    (NoMask(), "attention is the formula"),
    (NaNRows(), "a query without a key gets 0"),
    (NoScale(), "attention is the formula"),
    (LowLse(), "the lse of a query without a key is -inf"),
    (Base2(), "the lse is the formula's"),
    (NoGradient(), "gradients are those of the formula"),
    (NoDropout(), "dropout drops weights by the documented counter"),
    (DropsLse(), "the lse knows no dropout"),
    (Flickers(), "two runs agree"),
    (ReadsHidden(), "what nobody attends changes nothing"),
    (Tiled(), "attention is the formula"),
    (Fails(), "what is not declined runs"),
    (Unsure(), "declined problems raise their reasons"),
    (Speechless(), "declined problems raise their reasons"),
]


@pytest.mark.parametrize(("backend", "law"), BACKENDS, ids=lambda x: type(x).__name__)
def test_a_broken_back_end_is_named(backend: Any, law: str) -> None:
    broken(check_backend, backend, law, dtypes=[torch.float64])


def test_a_whole_back_end_passes() -> None:
    check_backend(Plain(), dtypes=[torch.float64])
    check_backend(NoGradient(), dtypes=[torch.float64], forward_only=True)


def test_a_back_end_that_declines_everything_is_not_checked() -> None:
    class Never(Plain):
        def unsupported(self, problem: Any) -> list[str]:
            return ["not today"]

    with pytest.raises(ValueError, match="'never' declines every problem"):
        check_backend(Never(), dtypes=[torch.float64])


def test_a_broken_law_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(LawBroken("a law", "here")))
    assert (error.law, error.detail, str(error)) == ("a law", "here", "law broken: a law: here")
    assert isinstance(error, AssertionError)


def test_the_library_does_not_import_the_kit() -> None:
    assert fresh("import sys, unified_attn; print('unified_attn.testing' in sys.modules)") == "False\n"
    code = "import sys, unified_attn.testing; print('pytest' in sys.modules)"
    assert fresh(code) == "False\n"


def test_a_back_end_without_gradients_is_checked_forward_only() -> None:
    class Forward(Plain):
        def unsupported(self, problem: Any) -> list[str]:
            asks = torch.is_grad_enabled() and problem.q.requires_grad
            return [*super().unsupported(problem), *(["no gradients here"] if asks else [])]

    check_backend(Forward(), dtypes=[torch.float64], forward_only=True)
    with pytest.raises(ValueError, match="declines every problem"):
        check_backend(Forward(), dtypes=[torch.float64])


def test_what_the_kit_cannot_do_it_says() -> None:
    with pytest.raises(ValueError, match=r"dtypes holds torch.bfloat16; choose from torch.float64, torch.float32"):
        check_backend("reference", dtypes=[torch.bfloat16])
    with pytest.raises(ValueError, match="choose one of"):
        check_mask(Near(), backends=["nope"])
