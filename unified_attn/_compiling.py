"""How loops are compiled: one place for the options, and for a machine without a writable cache.

Imports Numba, so it is imported only by modules that hold loops, themselves imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """Compile a helper into its callers."""
    result: Function = numba.njit(forceinline=True, error_model="numpy")(function)
    return result


def kernel(function: Function) -> Function:
    """Compile an entry point that runs without the interpreter lock, cached on disk where that is possible."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        result: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory that can be written to
        result = numba.njit(**options)(function)
    return result


def of_integers(function: Function) -> Any:
    """Compile a C function of 64-bit integers, with its ``address``; cached on disk where that is possible.

    At once, and by fewer passes of the optimiser: such a kernel names its vectors itself, and what further passes would
    look for is not there; they take a third of the time.
    """
    signature = numba.void(*[numba.int64] * function.__code__.co_argcount)
    with global_compiler_lock:  # which is held while anything is compiled, so that nobody else sees the other level
        before, config.OPT = config.OPT, _FEW_PASSES
        try:
            return numba.cfunc(signature, cache=True, error_model="numpy")(function)
        except RuntimeError:  # no directory that can be written to
            return numba.cfunc(signature, error_model="numpy")(function)
        finally:
            config.OPT = before


_FEW_PASSES = type(config.OPT)(1)
