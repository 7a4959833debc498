"""Which back end is quickest at which density and size: ``python -m experiments.benchmarks.sweep``.

The rule by which the default is chosen (``unified_attn.backends``) follows what this shows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from jsonargparse import auto_cli
from matplotlib import pyplot as plt

from experiments.benchmarks.measure import seconds_of
from experiments.environment import environment
from experiments.training.figures import STYLE
from unified_attn import BigBird, Documents, Graph, Mask, Window, attention, explain

BACKENDS = ("sdpa", "tiled", "csr", "scatter", "reference")
COLORS = dict(zip(BACKENDS, ("tab:blue", "tab:green", "tab:red", "tab:purple", "tab:gray"), strict=True))
HEADS, CHANNELS = 4, 64
MOST_EDGES = 2**22
LONGEST = 1.5  # seconds: what took longer at a smaller density or size is left out


@dataclass(frozen=True)
class Point:
    """One back end at one place.

    Args:
        kind: Of mask.
        length: Queries, and keys.
        share: Pairs that the mask allows, of all.
        backend: Its name.
        seconds: Forward and backward, median.
        default: Whether it is what ``backend=None`` takes.
    """

    kind: str
    length: int
    share: float
    backend: str
    seconds: float
    default: bool


def windows(length: int) -> Iterator[Mask]:
    """From one key to all of them."""
    for width in (1, 4, 16, 64, 256, 1024, 4096):
        if width < length:
            yield Window.causal(width)
    yield Window(length, length)


def documents(length: int) -> Iterator[Mask]:
    """From documents of one token to a single one."""
    for size in (1, 4, 16, 64, 256, 1024, 4096):
        if size < length:
            yield Documents(torch.arange(length) // size)
    yield Documents(torch.zeros(length, dtype=torch.int64))


def blocks(length: int) -> Iterator[Mask]:
    """Blocks of 32 at random places."""
    for each in (1, 4, 16, 64):
        if each + 2 < length // 32:
            yield BigBird(32, 0, 1, each, seed=0)


def graphs(length: int) -> Iterator[Mask]:
    """Random edges, without parallel ones."""
    every = torch.randperm(length**2, generator=torch.Generator().manual_seed(0))
    for share in (1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0):
        if length * share >= 0.5 and share * length**2 <= MOST_EDGES:
            pairs = every[: round(share * length**2)]
            yield Graph(torch.stack([pairs // length, pairs % length]), num_keys=length)


KINDS: dict[str, Callable[[int], Iterator[Mask]]] = {
    "windows": windows,
    "documents": documents,
    "random blocks": blocks,
    "graphs": graphs,
}


def compare(kind: str, length: int, mask: Mask, skip: set[str], seconds: float) -> list[Point]:
    """Every back end that can run this, in turn; the first run of each is not counted."""
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(1, HEADS, length, CHANNELS, generator=generator, requires_grad=True) for _ in range(3)]
    q, k, v = leaves
    found = explain(q, k, v, mask=mask)
    share = share_of(mask, length)
    runs = {}
    for name in BACKENDS:
        if found.reasons[name] or name in skip or (name == "reference" and mask.graph is not None):
            continue  # the reference takes each edge for a key: a table of nodes x edges

        def run(name: str = name) -> object:
            out = attention(q, k, v, mask=mask, backend=name)
            return torch.autograd.grad(out, leaves, out)

        runs[name] = run
    first = {name: seconds_of(run) for name, run in runs.items()}
    rounds = max(3, min(30, int(seconds / max(sum(first.values()), 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds_of(run))
    return [
        Point(kind, length, share, name, statistics.median(own), name == found.backend) for name, own in times.items()
    ]


def share_of(mask: Mask, length: int) -> float:
    """Pairs that the mask allows, of all."""
    allowed = 0
    for first in range(0, length, 256):
        rows = torch.arange(first, min(first + 256, length))[:, None]
        zero = torch.zeros(1, 1, dtype=torch.int64)
        allowed += int(mask.allow(zero, zero, rows, torch.arange(length)[None]).sum())
    return allowed / length**2


def draw(points: list[Point], out: Path) -> None:
    """Seconds by density, a panel a kind and length; what the default takes is ringed."""
    kinds, lengths = (list(dict.fromkeys(getattr(p, name) for p in points)) for name in ("kind", "length"))
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(kinds), len(lengths), figsize=(3 * len(lengths), 2.4 * len(kinds)), layout="constrained", squeeze=False
        )
        for row, kind in zip(axes, kinds, strict=True):
            for panel, length in zip(row, lengths, strict=True):
                for name in BACKENDS:
                    own = [p for p in points if (p.kind, p.length, p.backend) == (kind, length, name)]
                    x, y = [100 * p.share for p in own], [1e3 * p.seconds for p in own]
                    panel.loglog(x, y, ".-", color=COLORS[name], label=name)
                    chosen = [(a, b) for a, b, p in zip(x, y, own, strict=True) if p.default]
                    panel.loglog(*zip(*chosen, strict=True), "o", ms=9, mfc="none", mec="black") if chosen else None
                panel.set_xlim(0.007, 150)
                panel.set_title(f"{kind}, {length:,} tokens", fontsize=9)
        for panel in axes[-1]:
            panel.set_xlabel("pairs allowed, %")
        for row in axes:
            row[0].set_ylabel("forward + backward, ms")
        lines, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(lines, labels, frameon=False, loc="outside right")
        figure.savefig(out, dpi=150)
        plt.close(figure)


def regrets(points: list[Point]) -> list[tuple[str, int, float, str, str, float]]:
    """For each place: what the default took, the quickest, and how many times as long the default needs."""
    found = []
    for place in dict.fromkeys((p.kind, p.length, p.share) for p in points):
        here = [p for p in points if (p.kind, p.length, p.share) == place]
        best = min(here, key=lambda p: p.seconds)
        found += [(*place, p.backend, best.backend, p.seconds / best.seconds) for p in here if p.default]
    return found


def sweep(
    out: Path = Path("outputs/benchmarks"), lengths: list[int] | None = None, seconds: float = 1.0
) -> list[Point]:
    """Every back end at densities from 0.01 % to 100 %, forward and backward; about five minutes.

    Args:
        out: Folder for sweep.json and sweep.png.
        lengths: Numbers of tokens; default 512, 2048 and 8192.
        seconds: Time for a place, at least three runs of each back end.

    Returns:
        What was measured.
    """
    points: list[Point] = []
    for kind, masks in KINDS.items():
        for length in lengths or [512, 2048, 8192]:
            skip: set[str] = set()
            for mask in masks(length):
                points += compare(kind, length, mask, skip, seconds)
                skip |= {p.backend for p in points if p.kind == kind and p.length == length and p.seconds > LONGEST}
    out.mkdir(parents=True, exist_ok=True)
    where = environment("python -m experiments.benchmarks.sweep", ("numba",))
    (out / "sweep.json").write_text(
        json.dumps({"environment": where, "points": [asdict(p) for p in points]}, indent=1) + "\n"
    )
    draw(points, out / "sweep.png")
    for kind, length, share, took, best, regret in regrets(points):
        note = "" if took == best else f", {best} is quickest: {regret:.2f} times as long"
        print(f"{kind}, {length:,} tokens, {share:.3%}: {took}{note}")
    return points


if __name__ == "__main__":
    auto_cli(sweep, as_positional=False)
