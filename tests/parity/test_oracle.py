"""The oracle itself: its formula against Python loops, and numbers worked out by hand."""

import math

import pytest
import torch

from tests.parity import oracle
from tests.parity.cases import Choice, build
from tests.parity.test_matrix import QUICK

TINY = [choice for choice in QUICK if choice.sizes in ("1x6", "4x7") and choice.heads in ("1/1", "4/1", "6/2")][::6]


@pytest.mark.parametrize("choice", TINY, ids=str)
def test_formula_is_the_loops(choice: Choice) -> None:
    case = build(choice)
    spec = case.exact({name: x.detach().double() for name, x in case.given.items()})
    out, lse, _ = oracle.attention(spec)
    loop_out, loop_lse = oracle.attention_in_loops(spec)
    torch.testing.assert_close(out, torch.tensor(loop_out, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, torch.tensor(loop_lse, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_two_keys_by_hand() -> None:
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    keys = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64).reshape(1, 1, 2, 1)
    values = torch.tensor([4.0, 8.0], dtype=torch.float64).reshape(1, 1, 2, 1)
    ends = {"query": torch.tensor([0, 0]), "key": torch.tensor([0, 1])}
    spec = oracle.Spec(one, keys, values, **ends, visible=torch.ones(1, 1, 2, dtype=torch.bool))
    out, lse, weights = oracle.attention(spec)
    assert weights.flatten().tolist() == pytest.approx([0.25, 0.75])
    assert out.item() == pytest.approx(7.0)
    assert lse.item() == pytest.approx(math.log(4.0))


def test_empty_rows_have_no_gradient_and_no_nan() -> None:
    q, k, v = (torch.randn(1, 1, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    visible = torch.tensor([[[True, False]]])
    out, lse, _ = oracle.attention(oracle.Spec(q, k, v, torch.tensor([0, 1]), torch.tensor([0, 1]), visible))
    assert out[0, 0, 1].tolist() == [0.0, 0.0, 0.0]
    assert lse[0, 0, 1] == -math.inf
    for grad in torch.autograd.grad(out.sum(), (q, k, v)):
        assert grad[0, 0, 1].tolist() == [0.0, 0.0, 0.0]


def test_rotation_by_hand() -> None:
    quarter = math.pi / 2
    # Positions are integers in use; here one is a quarter turn, so that the first pair turns by 90 degrees.
    at = torch.tensor([[quarter]], dtype=torch.float64)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    small = quarter / 100  # the second pair of four coordinates turns a hundred times slower
    c, s = math.cos(small), math.sin(small)
    turned = oracle.rotations(at, 4, "interleaved", 4)[0, 0] @ x
    assert turned.tolist() == pytest.approx([-2.0, 1.0, 3 * c - 4 * s, 4 * c + 3 * s])
    turned = oracle.rotations(at, 4, "half", 4)[0, 0] @ x
    assert turned.tolist() == pytest.approx([-3.0, 2 * c - 4 * s, 1.0, 4 * c + 2 * s])


def test_dropout_keeps_the_right_share() -> None:
    factor = oracle.dropout_factor(5, 2, 3, range(4000), 0.25)
    assert set(factor.unique().tolist()) == {0.0, 1 / 0.75}
    assert (factor > 0).double().mean().item() == pytest.approx(0.75, abs=0.01)
