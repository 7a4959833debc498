"""Back ends by name, and the rule by which one is chosen: the first of an order that supports the problem.

- Where the mask holds a graph: ``csr``, ``scatter``, ``reference``.
- Where it lists at most a quarter of all pairs (a window with two sides, say): ``csr``, which reads just those pairs;
  of a window of 128 keys or more ``tiled`` before it, which computes whole blocks.
- Else the problem is dense: ``sdpa``; ``tiled`` before it where the table of mask and bias, which tiles never make,
  would hold more than 2^24 numbers.

After these come, in either of the last two, the others in the order of this list. ``flex`` is never chosen.
"""

from __future__ import annotations

from unified_attn.backends.base import Backend
from unified_attn.backends.csr import CSR
from unified_attn.backends.flex import Flex
from unified_attn.backends.reference import Reference
from unified_attn.backends.scatter import Scatter
from unified_attn.backends.sdpa import SDPA, needs_table
from unified_attn.backends.tiled import Tiled
from unified_attn.errors import UnsupportedError
from unified_attn.problem import Problem

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (SDPA(), Tiled(), CSR(), Scatter(), Flex(), Reference())
}
"""All back ends of the library by name."""

SPARSE_SHARE = 0.25
"""A list that holds a larger share of all pairs than this is computed densely."""

WIDE = 128
"""Keys a query from which on blocks of a band are computed faster than its pairs."""

LARGE = 2**24
"""Numbers in a table of mask and bias (64 MiB of float32) from which on it is not made."""

# Made here: a compiler formats no numbers.
_NARROW = f"the mask lists at most {SPARSE_SHARE:.0%} of all pairs"
_WIDE = f"{_NARROW}, in a window of {WIDE} keys or more"
_DENSE = "the mask lists no pairs"
_MOST = f"the mask lists more than {SPARSE_SHARE:.0%} of all pairs"
_LARGE = f"a table of mask and bias would hold more than {LARGE} numbers"


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
    shape, listed = problem.shape, problem.candidates is not None
    every = shape.num_queries * shape.num_keys
    if listed and problem.num_pairs <= SPARSE_SHARE * every:
        if _width(problem) >= WIDE:
            return ["tiled", "csr", "scatter", "reference"], _WIDE
        return ["csr", "tiled", "scatter", "reference"], _NARROW
    rest = ["csr", "scatter", "reference"] if listed else ["reference"]
    if needs_table(problem) and every * (shape.num_heads if problem.adds else 1) > LARGE:
        return ["tiled", "sdpa", *rest], _LARGE
    return ["sdpa", "tiled", *rest], _MOST if listed else _DENSE


def _width(problem: Problem) -> int:
    """Keys a query of a window; 0 if the mask is none."""
    left, right = problem.band or (None, None)
    return 0 if left is None or right is None else left + right + 1


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
