"""Back ends by name, and the rule by which one is chosen: the first of an order that supports the problem.

- Where the mask holds a graph: ``csr``, ``scatter``, ``reference``.
- Where the keys of a query are one run (windows, packed documents), 64 or more on average, of 512 queries or more, and
  the dense kernel would need a table of what is hidden: ``tiled``, which computes blocks of such runs. So where that
  table would only say which keys are padding, of 256 queries or more: padding is not computed then.
- Where the mask lists at most a third of all pairs: ``csr``, which reads just those pairs.
- Else the problem is dense: ``sdpa``; ``tiled`` before it where the table of mask and bias, which tiles never make,
  would hold more than 2^24 numbers.

After these come the others that can run it, in the order of this list. ``flex`` is never chosen.
"""

from __future__ import annotations

from unified_attn._watched import watched
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

SPARSE_SHARE = 1 / 3
"""A list that holds a larger share of all pairs than this is computed densely."""

WIDE = 64
"""Keys a query, on average and in one run, from which on blocks are computed faster than pairs."""

MANY = 512
"""Queries from which on that pays for handing blocks over one by one."""

SOME = 256
"""The same where a block is a whole entry of the batch."""

LARGE = 2**24
"""Numbers in a table of mask and bias (64 MiB of float32) from which on it is not made."""

# Made here: a compiler formats no numbers.
_NARROW = f"the mask lists at most {SPARSE_SHARE:.0%} of all pairs"
_WIDE = f"the keys of a query are one run, of {WIDE} or more on average"
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
    every, table = shape.num_queries * shape.num_keys, needs_table(problem)
    if table and not problem.hides_nothing and _is_wide(problem):
        return ["tiled", "csr", "scatter", "reference"] if listed else ["tiled", "sdpa", "reference"], _WIDE
    if listed and problem.num_pairs <= SPARSE_SHARE * every:
        return ["csr", "tiled", "scatter", "reference"], _NARROW
    rest = ["csr", "scatter", "reference"] if listed else ["reference"]
    if table and every * (shape.num_heads if problem.adds else 1) > LARGE:
        return ["tiled", "sdpa", *rest], _LARGE
    return ["sdpa", "tiled", *rest], _MOST if listed else _DENSE


def _is_wide(problem: Problem) -> bool:
    """Whether the keys of a query are one run, and so many; not where numbers are unknown, or a GPU waited for."""
    dense = problem.bare and problem.candidates is None
    known = problem.q.is_cpu and not watched(problem.q)
    if not known or problem.shape.num_queries < (SOME if dense else MANY):
        return False
    if problem.spans is None or (problem.spans.varies and not dense):
        return False
    return round(problem.keys_a_query) >= WIDE


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
