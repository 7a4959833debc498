"""Equality first, then time: ours and the peer in turn, so that both meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.benchmarks.cases import Case, Function

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """What was measured of one case.

    Args:
        case: Name.
        peer: Its name.
        direction: ``"forward"`` or ``"forward + backward"``.
        error: Largest error of ours against the peer's formula in float64, of outputs and gradients, relative to the
            largest value of each.
        peer_error: The same of the peer.
        ours_ms: Median time.
        peer_ms: Median time of the peer.
        spread: Interquartile range of the ratios of neighbouring runs.
        runs: Runs each.
    """

    case: str
    peer: str
    direction: str
    error: float
    peer_error: float
    ours_ms: float
    peer_ms: float
    spread: tuple[float, float]
    runs: int

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer ours is."""
        return self.peer_ms / self.ours_ms


def results(function: Function, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    """Output, and the gradient of each input for one fixed cotangent."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    out = function(*leaves)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, cotangent)]


def error(found: list[Tensor], right: list[Tensor]) -> float:
    """Largest error relative to the largest value of each tensor."""
    pairs = zip(found, right, strict=True)
    return max(float((f.double() - r).abs().max() / r.abs().max().clamp_min(1e-30)) for f, r in pairs)


def verify(case: Case) -> tuple[float, float]:
    """Errors of ours and of the peer against the formula in float64.

    Raises:
        ArithmeticError: If one is above the tolerance: what is not equal is not timed.
    """
    right = results(case.theirs, case.inputs, torch.float64)
    ours, theirs = (error(results(f, case.inputs, torch.float32), right) for f in (case.ours, case.theirs))
    if not (ours <= TOLERANCE and theirs <= TOLERANCE):
        raise ArithmeticError(f"{case.name}: errors {ours:.1e} (ours) and {theirs:.1e} (peer) exceed {TOLERANCE:.0e}")
    return ours, theirs


def _forward(function: Function, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return function(*inputs)

    return run


def _both(function: Function, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    cotangent = torch.ones_like(function(*leaves))

    def run() -> object:
        return torch.autograd.grad(function(*leaves), leaves, cotangent)

    return run


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(case: Case, seconds: float) -> list[Row]:
    """Both directions of a case, each for about so many seconds and at least 5 runs of each side."""
    ours_error, peer_error = verify(case)
    rows = []
    for direction, wrap in (("forward", _forward), ("forward + backward", _both)):
        ours, theirs = wrap(case.ours, case.inputs), wrap(case.theirs, case.inputs)
        once = _seconds(ours) + _seconds(theirs)  # also warms up
        times = [(_seconds(ours), _seconds(theirs)) for _ in range(max(5, min(200, int(seconds / once))))]
        low, _, high = statistics.quantiles([peer / own for own, peer in times], n=4)
        rows.append(
            Row(
                case=case.name,
                peer=case.peer,
                direction=direction,
                error=ours_error,
                peer_error=peer_error,
                ours_ms=1e3 * statistics.median(own for own, _ in times),
                peer_ms=1e3 * statistics.median(peer for _, peer in times),
                spread=(low, high),
                runs=len(times),
            )
        )
    return rows
