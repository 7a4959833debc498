"""What each back end supports, as a table: `python -m tests.parity.golden --write` writes it anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from tests.parity.bias_cases import BIASES
from tests.parity.cases import BACKENDS, Choice, build, possible
from tests.parity.mask_cases import MASKS
from tests.parity.score_cases import SCORES
from unified_attn import explain

FILE = Path(__file__).with_name("golden.txt")

HEAD = """\
What each back end supports: a row a mask, a column a bias, a table a set of scores that fare alike.
+ runs, . declines, x is undefined and raises, ~ depends on dtype, batch, heads, sizes or scale; dropout apart.
Written by `python -m tests.parity.golden --write`; a cell that goes or comes wants a reason in the change.
"""

NAMES = (*BACKENDS, "flex")

# A cell must fare alike in these. Each is looked at in the first, and in one of the others in turn.
SETTINGS = [
    {},
    {"dtype": "bfloat16", "batch": 3, "heads": "4/1"},
    {"dtype": "float32", "heads": "1/1", "sizes": "7x5", "dims": "4/7", "scale": 0.0},
    {"dtype": "float16", "heads": "8/8", "sizes": "1x6", "batch": 3, "scale": 0.7},
]


def cell(number: int, mask: str, bias: str, score: str) -> str:
    """A character for each back end, joined."""
    settings = SETTINGS[0], SETTINGS[1 + number % (len(SETTINGS) - 1)]
    found = [one(replace(Choice(mask, bias, score), **setting)) for setting in settings]
    return "".join(states[0] if len(set(states)) == 1 else "~" for states in zip(*found, strict=True))


def one(choice: Choice) -> str:
    if not possible("mask", choice.mask, "sizes", choice.sizes):
        choice = replace(choice, sizes="4x7")
    case = build(choice)
    try:
        with torch.no_grad():  # what runs forward alone counts
            reasons = explain(**case.inputs, **case.keywords).reasons
    except ValueError:
        return "x" * len(NAMES)
    return "".join("." if reasons[name] else "+" for name in NAMES)


def table() -> str:
    names = product(MASKS, BIASES, SCORES)
    cells = {(m, b, s): cell(number, m, b, s) for number, (m, b, s) in enumerate(names)}
    return "\n".join([HEAD, *header(), *(line for n in range(len(NAMES)) for line in section(cells, n))])


def header() -> Iterator[str]:
    yield "columns"
    yield from (f"  {chr(ord('a') + n) if n < 26 else chr(ord('A') + n - 26)}  {bias}" for n, bias in enumerate(BIASES))
    yield ""


def section(cells: dict[tuple[str, str, str], str], n: int) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for score in SCORES:
        rows = tuple("".join(cells[mask, bias, score][n] for bias in BIASES) for mask in MASKS)
        groups.setdefault(rows, []).append(score)
    width = max(map(len, MASKS))
    for rows, scores in groups.items():
        yield f"{NAMES[n]} with {', '.join(scores)}"
        letters = "".join(chr(ord("a") + n) if n < 26 else chr(ord("A") + n - 26) for n in range(len(BIASES)))
        yield f"  {'':<{width}}  {letters}"
        yield from (f"  {mask:<{width}}  {row}" for mask, row in zip(MASKS, rows, strict=True))
        yield ""


if __name__ == "__main__":
    if "--write" in sys.argv:
        FILE.write_text(table())
    else:
        print(table())
