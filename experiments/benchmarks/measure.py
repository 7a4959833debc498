"""Equality first, then time: ours and the peer in turn, so that both meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from experiments.benchmarks.case import Case, Side

TOLERANCE, PEER_TOLERANCE = 1e-4, 1e-3
"""Ours may be off by the first, or by 1.5 times as much as the peer, who may be off by the second: float32 itself is,
where 10^5 numbers are added one by one, or where 10^8 pass the kink of a LeakyReLU."""


@dataclass(frozen=True)
class Row:
    """What was measured of one case.

    Args:
        case: Name.
        peer: Its name.
        direction: ``"forward"`` or ``"forward + backward"``.
        error: Of ours against float64: see :func:`error`.
        peer_error: The same of the peer.
        ours_ms: Median time.
        peer_ms: Median time of the peer.
        spread: Interquartile range of the ratios of neighbouring runs.
        runs: Runs each.
        passes: Ours in passes of gathering, where the case has such a floor.
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
    passes: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer ours is."""
        return self.peer_ms / self.ours_ms


def results(side: Side, inputs: tuple[Tensor, ...], dtype: torch.dtype, trains: bool = True) -> list[Tensor]:
    """Output, and if it trains the gradient of each input and weight for one fixed cotangent."""
    leaves = [x.detach().to(dtype).requires_grad_(trains) for x in inputs]
    out = side.function(*leaves)
    if not trains:
        return [out]
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, [*leaves, *side.weights], cotangent)]


def error(found: list[Tensor], right: list[Tensor]) -> float:
    """Root of the mean squared error relative to that of the values: the worst of the output and of each gradient.

    Not the largest error: among 10^8 numbers some lie so close to the kink of a LeakyReLU that rounding turns their
    slope. One row of 10^5 that is wrong still shows.
    """

    def size(x: Tensor) -> float:
        return float(x.double().square().mean().sqrt())

    # A gradient that is 0 but for rounding, as that of a key's bias under a softmax, is measured by the others.
    most = max((size(r) for r in right[1:] if r.numel()), default=0.0)
    scales = [1e-30, *[0.05 * most + 1e-30] * (len(right) - 1)]
    pairs = [(f, r, scale) for f, r, scale in zip(found, right, scales, strict=True) if r.numel()]
    return max(size(f.double() - r) / max(size(r), scale) for f, r, scale in pairs)


@lru_cache(maxsize=1)
def exact(side: Side, inputs: tuple[Tensor, ...], trains: bool) -> list[Tensor]:
    """:func:`results` in float64; kept for the next case, which may have the same with another peer."""
    return results(side, inputs, torch.float64, trains)


def verify(case: Case) -> tuple[float, float]:
    """Errors of ours and of the peer against float64.

    Raises:
        ArithmeticError: If one is above the tolerance: what is not equal is not timed.
    """
    right = exact(case.exact, case.inputs, case.trains)
    ours, theirs = (
        error(results(side, case.inputs, torch.float32, case.trains), right) for side in (case.ours, case.theirs)
    )
    if not (ours <= max(TOLERANCE, 1.5 * theirs) and theirs <= PEER_TOLERANCE):
        raise ArithmeticError(
            f"{case.name}: errors {ours:.1e} (ours) and {theirs:.1e} (peer) "
            f"exceed {TOLERANCE:.0e} or {PEER_TOLERANCE:.0e}"
        )
    return ours, theirs


def _forward(side: Side, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return side.function(*inputs)

    return run


def _both(side: Side, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    cotangent = torch.ones_like(side.function(*leaves))

    def run() -> object:
        return torch.autograd.grad(side.function(*leaves), [*leaves, *side.weights], cotangent)

    return run


def seconds_of(run: Callable[[], object]) -> float:
    """How long one run takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(case: Case, seconds: float) -> list[Row]:
    """Each direction of a case for about so many seconds, and at least 3 runs of each side, in turn."""
    ours_error, peer_error = verify(case)
    rows = []
    directions = [("forward", _forward), ("forward + backward", _both)]
    for direction, wrap in directions if case.trains else directions[:1]:
        sides = [wrap(case.ours, case.inputs), wrap(case.theirs, case.inputs)]
        sides += [] if case.floor is None else [case.floor]
        first = [seconds_of(side) for side in sides]  # warms up what is quick; what is slow was run to be verified
        times = [first] if sum(first) > seconds else []
        runs = max(3, min(200, int(seconds / sum(first))))
        times += [[seconds_of(side) for side in sides] for _ in range(runs - len(times))]
        ours_s, peer_s, *floor_s = (statistics.median(column) for column in zip(*times, strict=True))
        low, _, high = statistics.quantiles([peer / own for own, peer, *_ in times], n=4)
        rows.append(
            Row(
                case=case.name,
                peer=case.peer,
                direction=direction,
                error=ours_error,
                peer_error=peer_error,
                ours_ms=1e3 * ours_s,
                peer_ms=1e3 * peer_s,
                spread=(low, high),
                runs=len(times),
                passes=ours_s / floor_s[0] if floor_s else None,
            )
        )
    return rows
