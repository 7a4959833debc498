"""The three passes over rows, each from operands to a run kernel: forward, backward by rows, backward by columns.

What is made for a layout is kept by those who pass ``launches``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unified_attn.kernels.csr_call import Call, dense_last
from unified_attn.kernels.csr_launch import (
    PAIR_WORK,
    Launch,
    Tasks,
    fewer_blocks,
    head_ranges,
    heads_of,
    node_major,
    num_blocks,
    prefetched,
)

_SHARED = ("key_vectors", "value_vectors", "key_weight", "att")
_PAIRS = ("add", *_SHARED, "key_features", "value_features")


class RowSet(NamedTuple):
    """Rows that one launch goes over.

    Args:
        operands: ``indptr``, ``col`` and ``edge``; of pieces of rows also ``ends`` and ``row``.
        entries: What else the record says of them.
        size: How many.
        shared: Whether they serve the whole batch.
    """

    operands: dict[str, Tensor]
    entries: dict[str, int | float]
    size: int
    shared: bool


def all_rows(indptr: Tensor, col: Tensor, edge: Tensor, longest: int) -> RowSet:
    """Every row of at most ``longest`` pairs."""
    shared = indptr.size(0) == 1
    count = indptr.size(1) - 1
    stride = 0 if shared else indptr.stride(0) * 8
    operands = {"indptr": indptr, "col": col, "edge": edge}
    return RowSet(operands, {"indptr_b": stride, "rows": count, "longest": longest}, count, shared)


class Saved(NamedTuple):
    """What the backward passes get beside the call.

    Args:
        g_out: Gradient of the output.
        g_lse: That of lse, or None.
        g_mixed: That of mixed, or None.
        out: The output.
        lse: Its log-sum-exp.
        mixed: The sums of value features.
        stats: Written by the pass over rows, read by that over columns: (lse, delta) of each query,
            ``[B, Hq, Nq, 2]``.
    """

    g_out: Tensor
    g_lse: Tensor | None
    g_mixed: Tensor | None
    out: Tensor
    lse: Tensor
    mixed: Tensor
    stats: Tensor

    @classmethod
    def of(
        cls,
        call: Call,
        g_out: Tensor,
        g_lse: Tensor | None,
        g_mixed: Tensor | None,
        out: Tensor,
        lse: Tensor,
        mixed: Tensor,
    ) -> Saved:
        """As kernels read it, with space for the statistics."""
        if call.mixed_features is None:  # compiled code hands over a gradient of what is empty, too
            g_mixed = None
        g_mixed = None if g_mixed is None else dense_last(g_mixed)
        batch, heads, nodes, _ = call.query.shape
        if node_major(call.key) or node_major(call.values):  # a query's statistics lie as its heads do
            stats = call.query.new_empty(batch, nodes, heads, 2).transpose(1, 2)
        else:
            stats = call.query.new_empty(batch, heads, nodes, 2)
        return cls(dense_last(g_out), g_lse, g_mixed, dense_last(out), lse, dense_last(mixed), stats)

    def operands(self) -> dict[str, Tensor | None]:
        """The record's operands."""
        mixed = None if self.g_mixed is None else self.mixed
        return {
            "g_out": self.g_out,
            "g_lse": self.g_lse,
            "g_mixed": self.g_mixed,
            "out": self.out,
            "lse": self.lse,
            "mixed": mixed,
            "stats": self.stats,
        }


Grads = dict[str, Tensor]


Launches = dict[str, Launch]
"""Kernels by the pass that they do, made for one layout."""


def launched(
    which: str, launches: Launches | None, make: Callable[[], Launch], operands: dict[str, Any], call: Call
) -> bool:
    """Runs what was made before, or is made now; returns whether there were longer rows."""
    found = None if launches is None else launches.get(which)
    if found is None:
        found = make()
        if launches is not None:
            launches[which] = found
    return found.run(operands, call.numbers)


def forward(
    call: Call, rows: RowSet, out: Tensor, lse: Tensor, mixed: Tensor, launches: Launches | None = None
) -> bool:
    """Writes the three results; returns, as the others do, whether there were longer rows, which it left out."""
    operands = {**rows.operands, **call.operands(), "out": out, "lse": lse}
    if call.mixed_features is not None:
        operands["mixed"] = mixed

    def plan() -> Launch:
        ranges, size = cut_heads(call)
        entries = {**rows.entries, **prefetched(call.key, call.values, len(ranges))}
        tasks = Tasks([one_by_one(call)], ranges, num_blocks(call.pairs, rows.size, size))
        return Launch("forward", call, operands, entries, heads_of(call), tasks)

    return launched("forward", launches, plan, operands, call)


def backward_rows(call: Call, rows: RowSet, saved: Saved, grad: Grads, launches: Launches | None = None) -> bool:
    """Writes the gradients of query and key_query, and ``stats``; adds to those of what belongs to a pair."""
    # What many pairs share gets a partial sum a block of rows.
    coded = {"key_vectors": call.key_code is not None, "value_vectors": call.value_code is not None}
    shared = [name for name in _SHARED if name in grad and coded.get(name, True)]
    ranges, size = cut_heads(call)
    blocks = fewer_blocks(num_blocks(call.pairs, rows.size, size), [grad[name] for name in shared])
    if "add" in grad and grad["add"].size(2) < call.pairs:  # one number for all pairs, to which one task has to add
        blocks = 1
    sums = {name: grad[name][None] for name in _SHARED if name in grad}
    if blocks > 1:
        sums.update({name: call.query.new_zeros(blocks, *grad[name].shape) for name in shared})
    of_values = sums.get("key_vectors" if call.one_vectors else "value_vectors")
    operands = {
        **rows.operands,
        **call.operands(),
        **saved.operands(),
        "dq": grad.get("query"),
        "dadd": grad.get("add"),
        "dkvec": sums.get("key_vectors"),
        "dvvec": of_values,
        "dkfeat": grad.get("key_features"),
        "dkquery": grad.get("key_query"),
        "dkweight": sums.get("key_weight"),
        "dvfeat": grad.get("key_features" if call.one_features else "value_features"),
        "datt": sums.get("att"),
    }

    def plan() -> Launch:
        row_ranges = [(0, call.query.size(1))] if heads_share(call, grad) else ranges
        entries = {**rows.entries, "shared": int(rows.shared), **prefetched(call.key, call.values, len(row_ranges))}
        heads = {
            **heads_of(call),
            "dkvec": (sums.get("key_vectors"), 2),
            "dvvec": (of_values, 2),
            "dkweight": (sums.get("key_weight"), 1),
        }
        batches = [one_by_one(call)]
        if any(name in grad for name in _PAIRS):
            # What belongs to a pair is added up over the batch: in one task, or, as one number may lie in different
            # rows then, one item after another.
            batches = [[(0, call.query.size(0))]] if rows.shared else [[one] for one in one_by_one(call)]
        return Launch("rows", call, operands, entries, heads, Tasks(batches, row_ranges, blocks))

    longer = launched("rows", launches, plan, operands, call)
    if blocks > 1:
        for name in shared:
            grad[name] += torch.from_numpy(np.add.reduce(sums[name].numpy(), axis=0))  # in order, on one thread
    return longer


def backward_columns(call: Call, rows: RowSet, saved: Saved, grad: Grads, launches: Launches | None = None) -> bool:
    """Writes the gradients of key and value. Reads ``stats``; its rows are those of the transpose."""
    dv = grad.get("key" if call.value is None else "value")  # both are added to one, if they are of one tensor
    operands = {**rows.operands, **call.operands(), **saved.operands(), "dk": grad.get("key"), "dv": dv}

    def plan() -> Launch:
        ranges, size = cut_heads(call)
        entries = {**rows.entries, **prefetched(call.query, saved.g_out, len(ranges))}
        heads = {**heads_of(call), "dk": (grad.get("key"), 1), "dv": (dv, 1)}
        tasks = Tasks([one_by_one(call)], ranges, num_blocks(call.pairs, rows.size, size))
        return Launch("columns", call, operands, entries, heads, tasks)

    return launched("columns", launches, plan, operands, call)


def cut_heads(call: Call) -> tuple[list[tuple[int, int]], int]:
    """Ranges of heads, and what one costs for a pair, in floats read."""
    ranges = head_ranges(call.query, call.key, call.values)
    return ranges, call.query.size(1) // len(ranges) * call.pair_size + PAIR_WORK


def one_by_one(call: Call) -> list[tuple[int, int]]:
    """Each item of the batch."""
    return [(b, b + 1) for b in range(call.query.size(0))]


def heads_share(call: Call, grad: Grads) -> bool:
    """Whether heads of different tasks would add to one number of a gradient: then one task has to take them all."""
    of_keys, of_values = call.key_vectors, call.mixed_vectors
    fewer_than_values = of_values is not None and of_values.size(1) < call.values.size(1)
    fewer = {
        "add": call.add is not None and call.add.size(1) < call.query.size(1),
        "key_vectors": (of_keys is not None and of_keys.size(1) < call.key.size(1))
        or (call.one_vectors and fewer_than_values),
        "value_vectors": fewer_than_values,
        "key_features": True,
        "value_features": True,
    }
    return any(name in grad and share for name, share in fewer.items())
