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
    return _compiled(function)


def of_integers(function: Function) -> Function:
    """:func:`kernel` at once, for arguments that are all 64-bit integers, and by fewer passes of the optimiser.

    Such a kernel names its vectors itself, and what further passes would look for is not there; they take a third of
    the time.
    """
    count = function.__code__.co_argcount
    with global_compiler_lock:  # which is held while anything is compiled, so that nobody else sees the other level
        before, config.OPT = config.OPT, _FEW_PASSES
        try:
            return _compiled(function, numba.void(*[numba.int64] * count))
        finally:
            config.OPT = before


_FEW_PASSES = type(config.OPT)(1)


def _compiled(function: Function, *signature: Any) -> Function:
    options = {"nogil": True, "error_model": "numpy"}
    try:
        result: Function = numba.njit(*signature, cache=True, **options)(function)
    except RuntimeError:  # no directory that can be written to
        result = numba.njit(*signature, **options)(function)
    return result
