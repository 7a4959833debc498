"""Back end x mask x bias x score x dtype x sizes against the oracle: output, lse and every gradient.

The quick part holds each pair of values of any two axes; the slow part each mask x bias x score, the other axes drawn.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from tests.parity.bias_cases import BIASES
from tests.parity.cases import AXES, DIMS, Choice, build, possible
from tests.parity.compare import compare
from tests.parity.mask_cases import MASKS
from tests.parity.pairwise import pick
from tests.parity.score_cases import SCORES

QUICK = [Choice(**case) for case in pick(AXES, possible)]
DRAWS = 2  # of the other axes, for each mask x bias x score


@pytest.mark.parametrize("choice", QUICK, ids=str)
def test_pairwise(choice: Choice) -> None:
    assert compare(build(choice)) == []


@cache
def rest(mask: str, bias: str) -> list[Choice]:
    """Of a mask and bias every score, with draws of the other axes that depend on the names alone."""
    draw = random.Random(f"{mask}, {bias}")
    axes = {**AXES, "dims": list(DIMS)}
    found = []
    for score in SCORES:
        start = Choice(mask, bias, score)
        for _ in range(DRAWS if start.defined else 0):
            while True:
                choice = replace(start, **{axis: draw.choice(axes[axis]) for axis in list(axes)[3:]})
                if choice.defined:
                    break
            found.append(choice)
    return [choice for choice in found if choice not in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("mask", MASKS)
def test_each_mask_bias_and_score(mask: str, bias: str) -> None:
    if not possible("mask", mask, "bias", bias):
        with pytest.raises(ValueError, match=r"tied to the edges|does not broadcast"):
            compare(build(Choice(mask, bias)))
    found = {str(choice): faults for choice in rest(mask, bias) if (faults := compare(build(choice)))}
    assert found == {}
