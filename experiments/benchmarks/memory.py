"""Peak memory of a training step, ours and a peer's: ``python -m experiments.benchmarks.memory``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from jsonargparse import auto_cli

from experiments.benchmarks.memory_cases import CASES
from experiments.environment import environment
from experiments.growth import grown, in_fresh_process, limit

MIB = 2**20


@dataclass(frozen=True)
class Peak:
    """What was measured of one case, in MiB.

    Args:
        case: Name.
        peer: Its name.
        results: Of the output and the gradients, which both must hold.
        ours: Growth of the process over a step; None if it runs out of memory.
        theirs: The same of the peer.
    """

    case: str
    peer: str
    results: float
    ours: float | None
    theirs: float | None


def growth(name: str, ours: bool, limit_bytes: int) -> int:
    """Growth of this process over a step, after one of a small size."""
    case = CASES[name]
    make = case.ours if ours else case.theirs
    make(False)()
    step = make(True)
    limit(limit_bytes)
    return grown(step)


def size_of_results(name: str) -> int:
    """Bytes of the output and the gradients."""
    return sum(x.numel() * x.element_size() for x in CASES[name].ours(True)())


def peak(name: str, limit_bytes: int) -> Peak:
    """Ours and the peer, in a fresh process each."""
    found = []
    for ours in (True, False):
        try:
            found.append(in_fresh_process(growth, name, ours, limit_bytes) / MIB)
        except MemoryError:
            found.append(None)
    return Peak(name, CASES[name].peer, in_fresh_process(size_of_results, name) / MIB, *found)


def markdown(peaks: list[Peak], where: dict[str, str], limit_gib: float) -> str:
    """The table, a row a case."""

    def shown(size: float | None) -> str:
        return f"more than {1024 * limit_gib:,.0f}" if size is None else f"{size:,.0f}"

    lines = [
        "| forward + backward | peer | ours, MiB | peer, MiB | of which output and gradients |",
        "| --- | --- | ---: | ---: | ---: |",
        *(f"| {p.case} | {p.peer} | {shown(p.ours)} | {shown(p.theirs)} | {shown(p.results)} |" for p in peaks),
        "",
        *(f"- {name}: {value}" for name, value in where.items()),
        "- float32; growth of a fresh process over one step, after a step of a small size",
        "",
    ]
    return "\n".join(lines)


def memory(out: Path = Path("outputs/benchmarks"), limit_gib: float = 12.0) -> None:
    """Peak memory of a training step, each side in a fresh process.

    Args:
        out: Folder for memory.json and memory.md, written after every case.
        limit_gib: Most that a process may grow.
    """
    where = environment("python -m experiments.benchmarks.memory", ("numba", "torch-geometric"))
    out.mkdir(parents=True, exist_ok=True)
    peaks: list[Peak] = []
    for name in CASES:
        print(name, flush=True)
        peaks.append(peak(name, int(limit_gib * 2**30)))
        rows = [asdict(one) for one in peaks]
        (out / "memory.json").write_text(json.dumps({"environment": where, "rows": rows}, indent=2) + "\n")
        (out / "memory.md").write_text(markdown(peaks, where, limit_gib))
    print(markdown(peaks, where, limit_gib))


if __name__ == "__main__":
    auto_cli(memory, as_positional=False)
