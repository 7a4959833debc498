"""How loops are compiled: one place for the options, and for a machine without a writable cache.

Imports Numba, so it is imported only by modules that hold loops, themselves imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """Compile a helper into its callers."""
    result: Function = numba.njit(forceinline=True, error_model="numpy")(function)
    return result


def kernel(function: Function, *, fastmath: frozenset[str] = frozenset()) -> Function:
    """Compile an entry point that runs without the interpreter lock, cached on disk where that is possible."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}
    try:
        result: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory that can be written to
        result = numba.njit(**options)(function)
    return result
