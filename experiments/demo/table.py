"""One row a model: mask x bias x score through `attention`, against an independent peer in value, gradient and time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 2e-5  # float32

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Row:
    """A model as values of the three slots.

    Args:
        model: Its name.
        mask: Who may interact, as one writes it.
        bias: Which pairs are preferred.
        score: How alike two items are.
        peer: What it is compared with.
        make: From a random generator: inputs (activations and, where there are any, weights), our function of them
            and the peer's.
    """

    model: str
    mask: str
    bias: str
    score: str
    peer: str
    make: Callable[[torch.Generator], tuple[Sequence[Tensor], Function, Function]]


@dataclass(frozen=True)
class Verdict:
    """Args:
    row: The row.
    output_error: Largest absolute difference of outputs.
    gradient_error: Largest absolute difference of the gradients of all inputs, for weights of the outputs drawn
        from a normal distribution. A gradient whose largest entry is above 1 is first scaled to 1: that of a
        matrix is a sum over thousands of nodes.
    ours_ms: Median time of forward and backward.
    peer_ms: The peer's.
    """

    row: Row
    output_error: float
    gradient_error: float
    ours_ms: float
    peer_ms: float

    @property
    def passed(self) -> bool:
        return self.output_error <= TOLERANCE and self.gradient_error <= TOLERANCE  # NaN fails

    @property
    def speed(self) -> float:
        """Above 1: ours is faster."""
        return self.peer_ms / self.ours_ms


def check(row: Row, repeats: int) -> Verdict:
    """Compares, then times the two in turn, so that a busy moment of the machine meets both."""
    generator = torch.Generator().manual_seed(0)
    inputs, ours, peer = row.make(generator)
    weight: Tensor | None = None

    def run(function: Function) -> tuple[Tensor, tuple[Tensor, ...]]:
        nonlocal weight
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = function(*leaves)
        if weight is None:
            weight = torch.randn(out.shape, generator=generator)
        return out.detach(), torch.autograd.grad(out, leaves, weight)

    (out, gradients), (wanted, wanted_gradients) = run(ours), run(peer)
    pairs = zip(gradients, wanted_gradients, strict=True)
    errors = torch.stack([(g - w).abs().max() / w.abs().max().clamp(min=1.0) for g, w in pairs])

    times: dict[Function, list[float]] = {ours: [], peer: []}
    for _ in range(repeats):
        for function, taken in times.items():
            begin = time.perf_counter()
            run(function)
            taken.append(1e3 * (time.perf_counter() - begin))
    return Verdict(
        row=row,
        output_error=float((out - wanted).abs().max()),
        gradient_error=float(errors.max()),
        ours_ms=statistics.median(times[ours]),
        peer_ms=statistics.median(times[peer]),
    )


def show(verdicts: Iterable[Verdict]) -> str:
    """The table as text."""
    head = ("model", "mask", "bias", "score", "peer", "output", "gradient", "", "speed")
    lines = [
        (
            *(v.row.model, v.row.mask, v.row.bias, v.row.score, v.row.peer),
            *(f"{v.output_error:.0e}", f"{v.gradient_error:.0e}", "PASS" if v.passed else "FAIL", f"{v.speed:.2f}"),
        )
        for v in verdicts
    ]
    widths = [max(len(line[n]) for line in [head, *lines]) for n in range(len(head))]
    rule = "  ".join("-" * width for width in widths)
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *lines)]
    return "\n".join(line.rstrip() for line in [text[0], rule, *text[1:]])
