"""How faults are named and put into the library for one test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]


def registry() -> tuple[dict[str, Patch], Callable[[Patch], Patch]]:
    """A module's own faults by name, and the decorator that adds one."""
    faults: dict[str, Patch] = {}

    def fault(patch: Patch) -> Patch:
        faults[patch.__name__.replace("_", " ")] = patch
        return patch

    return faults, fault


def change(patch: pytest.MonkeyPatch, owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Puts a function in the place of another, which it is made from."""
    patch.setattr(owner, name, make(getattr(owner, name)))
