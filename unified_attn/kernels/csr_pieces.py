"""Long rows, cut into pieces that tasks share: each pass once more, over pieces in place of rows, and then joined.

A node joined to all others, or a global token, is a row as long as the whole list; as one task it would keep one thread
busy while the others wait. Where rows are cut depends on the data alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unified_attn.dropout import HEAD_STEP, signed
from unified_attn.kernels import csr_passes
from unified_attn.kernels.csr_call import Call
from unified_attn.kernels.csr_passes import Grads, RowSet, Saved


class Pieces(NamedTuple):
    """Pieces of long rows.

    Args:
        rows: What a pass goes over.
        row: ``[P]`` int64, which row a piece is of; those of one row lie next to each other.
        first: ``[R]``, the first piece of each long row.
        items: Which items of the batch have these rows.
    """

    rows: RowSet
    row: Tensor
    first: np.ndarray[Any, Any]
    items: slice

    @property
    def long(self) -> Tensor:
        """``[R]`` int64: the long rows."""
        return self.row[torch.from_numpy(self.first)]


def cut(indptr: Tensor, col: Tensor, edge: Tensor, longest: int) -> Iterator[Pieces]:
    """Cuts rows of more than ``longest`` pairs into pieces; no item where there are none."""
    shared = indptr.size(0) == 1
    for item, starts in enumerate(indptr.numpy()):
        length = np.diff(starts)
        long = np.flatnonzero(length > longest)
        if not long.size:
            continue
        count = -(-length[long] // longest)
        first = np.cumsum(count) - count
        of = np.repeat(long, count)
        number = np.arange(len(of)) - np.repeat(first, count)  # of the piece within its row
        begin = starts[of] + number * longest
        ends = np.minimum(begin + longest, starts[of + 1])
        row = torch.from_numpy(of)
        operands = {"indptr": torch.from_numpy(begin), "ends": torch.from_numpy(ends), "row": row}
        rows = RowSet({**operands, "col": col, "edge": edge}, {"rows": len(of), "even": 1}, len(of), shared)
        yield Pieces(rows, row, first, slice(None) if shared else slice(item, item + 1))


def forward(call: Call, pieces: Pieces, out: Tensor, lse: Tensor, mixed: Tensor) -> None:
    """Writes the results of the long rows: those of their pieces, joined by their lse."""
    call = _of_queries(call, pieces)
    batch, heads, count, _ = call.query.shape
    features = call.mixed_features
    part_lse = call.query.new_empty(batch, heads, count)
    parts = [call.query.new_empty(batch, heads, count, call.values.size(3))]
    parts.append(call.query.new_empty(0 if features is None else (batch, heads, count, features.size(1))))
    csr_passes.forward(call, pieces.rows, parts[0], part_lse, parts[1])
    top = np.maximum.reduceat(part_lse.numpy(), pieces.first, axis=2)
    base = np.where(top == -np.inf, 0, top)  # a row that sees nothing
    share = np.exp(part_lse.numpy() - _each(base, pieces))
    mass = np.add.reduceat(share, pieces.first, axis=2)
    share /= _each(np.where(mass == 0, 1, mass), pieces)
    with np.errstate(divide="ignore"):
        lse[pieces.items, :, pieces.long] = torch.from_numpy(base + np.log(mass))
    weights = torch.from_numpy(share)[..., None]
    out[pieces.items, :, pieces.long] = _summed(parts[0] * weights, pieces)
    if features is not None:
        mixed[pieces.items, :, pieces.long] = _summed(parts[1] * weights, pieces)


def backward_rows(call: Call, pieces: Pieces, saved: Saved, grad: Grads) -> None:
    """What the pass over rows does, for the long ones."""
    some = _of_queries(call, pieces)
    at, items = pieces.row, pieces.items
    part = Saved.of(
        some,
        saved.g_out[items].index_select(2, at),
        None if saved.g_lse is None else saved.g_lse[items].index_select(2, at),
        None if saved.g_mixed is None else saved.g_mixed[items].index_select(2, at),
        saved.out[items].index_select(2, at),
        saved.lse[items].index_select(2, at),
        saved.mixed if saved.g_mixed is None else saved.mixed[items].index_select(2, at),
    )
    parts: Grads = {name: torch.empty_like(getattr(some, name)) for name in ("query", "key_query") if name in grad}
    others = {**grad, "add": grad["add"][items]} if "add" in grad and grad["add"].size(0) > 1 else grad
    csr_passes.backward_rows(some, pieces.rows, part, {**others, **parts})
    for name, x in parts.items():
        grad[name][items, :, pieces.long] = _summed(x, pieces)
    saved.stats[items, :, pieces.long] = part.stats[:, :, torch.from_numpy(pieces.first)]


def backward_columns(call: Call, pieces: Pieces, saved: Saved, grad: Grads) -> None:
    """What the pass over columns does, for the long ones."""
    at, items = pieces.row, pieces.items
    some = _of_items(call, items)._replace(key=call.key[items].index_select(2, at))
    if call.value is not None:
        some = some._replace(value=call.value[items].index_select(2, at))
    part = Saved(*(None if x is None else x[items] for x in saved))  # type: ignore[arg-type]
    parts: Grads = {name: torch.empty_like(getattr(some, name)) for name in ("key", "value") if name in grad}
    csr_passes.backward_columns(some, pieces.rows, part, parts)
    for name, x in parts.items():
        grad[name][items, :, pieces.long] = _summed(x, pieces)


def _of_queries(call: Call, pieces: Pieces) -> Call:
    """The call with one query a piece."""
    some = _of_items(call, pieces.items)
    key_query = some.key_query
    return some._replace(
        query=some.query.index_select(2, pieces.row),
        key_query=None if key_query is None else key_query.index_select(2, pieces.row),
    )


def _of_items(call: Call, items: slice) -> Call:
    """The call for some items of the batch, whose dropout goes on drawing as theirs."""
    if items.start is None:
        return call
    changed = {name: getattr(call, name)[items] for name in ("query", "key")}
    for name in ("value", "key_query"):
        x = getattr(call, name)
        changed[name] = None if x is None else x[items]
    for name in ("add", "key_code", "value_code"):
        x = getattr(call, name)
        changed[name] = x if x is None or x.size(0) == 1 else x[items]
    if call.seed is not None:
        changed["seed"] = call.seed + signed(items.start * call.query.size(1) * HEAD_STEP % 2**64)
    return call._replace(**changed)


def _each(of_rows: np.ndarray[Any, Any], pieces: Pieces) -> np.ndarray[Any, Any]:
    """What belongs to the long rows, for each of their pieces."""
    count = np.diff(pieces.first, append=len(pieces.row))
    return np.repeat(of_rows, count, axis=2)


def _summed(parts: Tensor, pieces: Pieces) -> Tensor:
    """The sum over the pieces of each row, in order."""
    return torch.from_numpy(np.add.reduceat(parts.numpy(), pieces.first, axis=2))
