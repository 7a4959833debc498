"""Counting sort of pairs by one end: two passes over the pairs, no comparison. Needs numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unified_attn._compiling import kernel

Ints = npt.NDArray[np.int64]
Narrow = npt.NDArray[np.int32]


@kernel
def counting_sort(major: Ints, minor: Ints, size: int) -> tuple[Ints, Narrow, Narrow]:
    """Sorts pairs by ``major``, stably.

    Args:
        major: ``[E]``, each in 0..size-1; the caller has checked that.
        minor: ``[E]``, the other ends.
        size: Number of rows.

    Returns:
        Offsets ``[size + 1]``, the other ends in sorted order ``[E]``, and the old places ``[E]``.
    """
    indptr = np.zeros(size + 1, dtype=np.int64)
    for e in range(major.shape[0]):
        indptr[major[e] + 1] += 1
    for i in range(size):
        indptr[i + 1] += indptr[i]
    place = indptr[:-1].copy()
    other = np.empty(major.shape[0], dtype=np.int32)
    order = np.empty(major.shape[0], dtype=np.int32)
    for e in range(major.shape[0]):
        p = place[major[e]]
        other[p] = minor[e]
        order[p] = e
        place[major[e]] = p + 1
    return indptr, other, order


@kernel
def transpose(indptr: Ints, col: Narrow, size: int) -> tuple[Ints, Narrow, Narrow]:
    """Turns compressed rows into compressed columns.

    Args:
        indptr: ``[rows + 1]``, offsets of the rows.
        col: ``[E]``, each in 0..size-1; the caller has checked that.
        size: Number of columns.

    Returns:
        Offsets ``[size + 1]``, rows in column order ``[E]``, and the old places ``[E]``.
    """
    t_indptr = np.zeros(size + 1, dtype=np.int64)
    for e in range(col.shape[0]):
        t_indptr[col[e] + 1] += 1
    for j in range(size):
        t_indptr[j + 1] += t_indptr[j]
    place = t_indptr[:-1].copy()
    row = np.empty(col.shape[0], dtype=np.int32)
    old = np.empty(col.shape[0], dtype=np.int32)
    for i in range(indptr.shape[0] - 1):
        for e in range(indptr[i], indptr[i + 1]):
            p = place[col[e]]
            row[p] = i
            old[p] = e
            place[col[e]] = p + 1
    return t_indptr, row, old
