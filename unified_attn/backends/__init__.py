"""Back ends by name, and the rule by which one is chosen.

The rule: where the mask lists its pairs (a graph always does; a window with two sides does, and counts if it lists at
most a quarter of all pairs) the order is ``csr``, ``scatter``, ``reference``; else it is ``reference`` alone, or first.
The first back end of the order that supports the problem runs it.
"""

from __future__ import annotations

from unified_attn.backends.base import Backend
from unified_attn.backends.csr import CSR
from unified_attn.backends.reference import Reference
from unified_attn.backends.scatter import Scatter
from unified_attn.backends.sdpa import SDPA
from unified_attn.backends.tiled import Tiled
from unified_attn.errors import UnsupportedError
from unified_attn.problem import Problem

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (SDPA(), Tiled(), CSR(), Scatter(), Reference())}
"""All back ends of the library by name."""

SPARSE_SHARE = 0.25
"""A list that holds a larger share of all pairs than this is computed densely."""

_SPARSE = f"the mask lists at most {SPARSE_SHARE:.0%} of all pairs"  # made here: a compiler formats no numbers
_DENSE = f"the mask lists more than {SPARSE_SHARE:.0%} of all pairs"


def find(backend: str | Backend) -> Backend:
    """The back end of that name, or the object itself.

    Raises:
        ValueError: If there is none of that name (all names are printed).
        TypeError: If it is neither a name nor a back end.
    """
    if isinstance(backend, Backend):
        return backend
    if not isinstance(backend, str):
        raise TypeError(f"backend is a {type(backend).__name__}; give a name or a Backend object")
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(map(repr, BACKENDS))}, or None")
    return BACKENDS[backend]


def order(problem: Problem) -> tuple[list[str], str]:
    """Names in the order in which they are tried, and the reason in words."""
    if problem.has_edges:
        return ["csr", "scatter", "reference"], "the mask holds a graph"
    every = problem.shape.num_queries * problem.shape.num_keys
    if problem.candidates is not None and problem.num_pairs <= SPARSE_SHARE * every:
        return ["csr", "scatter", "reference"], _SPARSE
    if problem.candidates is not None:
        return ["reference", "csr", "scatter"], _DENSE
    return ["reference"], "the mask lists no pairs"


def reasons_of(backend: Backend, problem: Problem) -> tuple[str, ...]:
    """Why a back end cannot run the problem.

    Raises:
        TypeError: If one's own does not answer with a list.
    """
    reasons = backend.unsupported(problem)
    if not isinstance(reasons, (list, tuple)):
        raise TypeError(
            f"back end {backend.name!r} must return a list of sentences (unsupported), or none, not {reasons!r}"
        )
    return tuple(reasons)


def choose(problem: Problem, backend: str | Backend | None) -> Backend:
    """The named back end, or by the rule the first that supports the problem.

    Raises:
        UnsupportedError: If the named one does not support it; nothing else is tried.
    """
    if backend is not None:
        chosen = find(backend)
        reasons = reasons_of(chosen, problem)
        if reasons:
            raise UnsupportedError(chosen.name, reasons)
        return chosen
    for name in order(problem)[0]:
        if not BACKENDS[name].unsupported(problem):
            return BACKENDS[name]
    return BACKENDS["reference"]


__all__ = ["BACKENDS", "Backend", "choose", "find", "order", "reasons_of"]
