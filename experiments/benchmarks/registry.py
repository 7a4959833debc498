"""All that is measured, one case at a time: inputs of the next are made when the last is done with."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.benchmarks.case import Case, Size
from experiments.benchmarks.layer_cases import layer_cases
from experiments.benchmarks.operator_cases import operator_cases, uneven_cases
from experiments.benchmarks.sequence_cases import sequence_cases

ARXIV = Size(169_343, 1_166_243, 4, 32)
CORA = Size(2_708, 10_556, 8, 8)
SMALL = Size(20_000, 140_000, 4, 32)
MOLECULES = Size(3_000, 7_000, 8, 8)  # a batch of a hundred


def cases(quick: bool) -> Iterator[Case]:
    """Operator, layers, sequences.

    Args:
        quick: Small sizes of the main ones, of one head size: within a minute, kernels compiled for the first time.
    """
    if quick:
        yield from operator_cases(SMALL)
        yield from layer_cases(SMALL, 128)
        yield from sequence_cases(1_024, 64, channels=32)
        return
    yield from operator_cases(ARXIV)
    yield from uneven_cases()
    yield from layer_cases(ARXIV, 128, compiled=True)
    yield from layer_cases(SMALL, 128, edge_dim=16)
    yield from layer_cases(CORA, 64)
    yield from layer_cases(MOLECULES, 64, edge_dim=8)
    yield from layer_cases(CORA, 1_433, words=True)
    yield from sequence_cases(8_192, 256, compiled=True)
