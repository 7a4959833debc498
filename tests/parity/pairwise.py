"""A few cases in which each pair of values of any two axes occurs."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

Possible = Callable[[str, Any, str, Any], bool]
Cell = tuple[str, Any]  # an axis and a value of it


def pairs(axes: dict[str, list[Any]], possible: Possible) -> list[tuple[Cell, Cell]]:
    """All pairs of values of two axes that may meet, in the order of the axes."""
    return [
        ((one, a), (other, b))
        for one, other in combinations(axes, 2)
        for a in axes[one]
        for b in axes[other]
        if possible(one, a, other, b)
    ]


def pick(axes: dict[str, list[Any]], possible: Possible) -> list[dict[str, Any]]:
    """Greedy and deterministic: each case begins with the first pair that is missing, and then takes for each axis the
    value that brings most missing pairs. Every choice that breaks no rule must be open to completion.
    """
    names = list(axes)
    place = {name: n for n, name in enumerate(names)}
    missing = dict.fromkeys(pairs(axes, possible))  # a set that keeps its order
    fits = {(a, b) for a, b in missing} | {(b, a) for a, b in missing}
    picked: list[dict[str, Any]] = []
    draw = random.Random(0)

    def ordered(a: Cell, b: Cell) -> tuple[Cell, Cell]:
        return (a, b) if place[a[0]] < place[b[0]] else (b, a)

    while missing:
        cells = list(next(iter(missing)))
        for name in names:
            if name in (cells[0][0], cells[1][0]):
                continue
            fitting = [(name, v) for v in axes[name] if all(((name, v), cell) in fits for cell in cells)]
            draw.shuffle(fitting)  # ties are drawn: most cases of a large axis consist of them
            cells.append(max(fitting, key=lambda new: sum(ordered(new, cell) in missing for cell in cells)))
        for a, b in combinations(cells, 2):
            missing.pop(ordered(a, b), None)
        picked.append(dict(sorted(cells, key=lambda cell: place[cell[0]])))
    return picked
