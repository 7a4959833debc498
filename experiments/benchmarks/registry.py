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


def cases(quick: bool) -> Iterator[Case]:
    """Operator, layers, sequences.

    Args:
        quick: Small sizes, and without what is compiled.
    """
    size = SMALL if quick else ARXIV
    yield from operator_cases(size)
    yield from uneven_cases(100 if quick else 1)
    yield from layer_cases(size, 128, compiled=not quick)
    yield from layer_cases(SMALL, 128, edge_dim=16)
    yield from layer_cases(CORA, 64)
    yield from layer_cases(CORA, 1_433, words=True)
    yield from sequence_cases(*((1_024, 64) if quick else (8_192, 256)), compiled=not quick)
