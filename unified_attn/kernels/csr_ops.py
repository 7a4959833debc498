"""The two custom operators of fused attention over compressed rows, with fake and autograd.

Nothing of size pairs x heads x features is formed, forward or backward: the backward pass computes scores again from
lse, once by rows and once by columns. The cut into blocks depends on the rows alone and no two tasks write one number,
so that results are equal bit for bit in every run and for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unified_attn.errors import refuse_second_derivative
from unified_attn.kernels.csr_args import record, strided
from unified_attn.kernels.csr_launch import (
    dense_last,
    dense_last_or_none,
    empty_nodes,
    find_kernel,
    head_ranges,
    head_table,
    listed,
    look_ahead,
    num_blocks,
    prefetch,
    run_tasks,
    score_options,
    zeros_add,
)


def _check_rows(query: Tensor, key: Tensor, indptr: Tensor, t_indptr: Tensor, others: list[Tensor]) -> None:
    batch, nodes, keys = query.size(0), query.size(2), key.size(2)
    for name, pointers, size in (("indptr", indptr, nodes), ("t_indptr", t_indptr, keys)):
        if pointers.dim() != 2 or pointers.size(0) not in (1, batch) or pointers.size(1) != size + 1:
            raise ValueError(f"{name} must be [1 or {batch}, {size + 1}], got {tuple(pointers.shape)}")
        if pointers.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got {pointers.dtype}")
    for name, other in zip(("col", "edge", "t_row", "t_edge"), others, strict=True):
        if other.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, got {other.dtype}")
        if other.size(0) != others[0].size(0):
            raise ValueError(f"col and {name} must have one length, got {others[0].size(0)} and {other.size(0)}")


@torch.library.custom_op("unified_attn::csr_forward", mutates_args=(), device_types="cpu")
def csr_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    indptr: Tensor,
    col: Tensor,
    edge: Tensor,
    t_indptr: Tensor,
    t_row: Tensor,
    t_edge: Tensor,
    add: Tensor | None,
    key_vectors: Tensor | None,
    value_vectors: Tensor | None,
    att: Tensor | None,
    seed: Tensor | None,
    scale: float,
    cap: float,
    slope: float,
    dropout_p: float,
    pair_counter: bool,
) -> tuple[Tensor, Tensor]:
    """See ``csr_attention``; the transpose is there for the gradient alone."""
    _check_rows(query, key, indptr, t_indptr, [col, edge, t_row, t_edge])
    batch, heads, nodes, width = query.shape
    size = value.size(-1)
    out = empty_nodes(query, heads, size)
    lse = query.new_empty(batch, heads, nodes)
    if out.numel() == 0 and lse.numel() == 0:
        return out, lse
    if key.numel() == 0 and key.size(2) == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    query, key, value = dense_last(query), dense_last(key), dense_last(value)
    key_vectors, value_vectors, att = map(dense_last_or_none, (key_vectors, value_vectors, att))
    indptr, col, edge = indptr.contiguous(), col.contiguous(), edge.contiguous()
    table = head_table(heads, [key, value, key_vectors, value_vectors] + [None] * 4, [1] * 8)
    ranges = head_ranges(query, key, value)
    parts = {**prefetch("k", key, len(ranges)), **prefetch("v", value, len(ranges))}
    if key.data_ptr() == value.data_ptr() and key.stride() == value.stride():
        parts["v_parts"] = 0
    args = record(
        {
            **strided("q", query),
            **strided("k", key),
            **strided("v", value),
            **strided("out", out),
            **strided("lse", lse),
            **strided("add", add, broadcast=True),
            **strided("kvec", key_vectors),
            **strided("vvec", value_vectors),
            **strided("att", att),
            **score_options(scale, cap, slope, dropout_p, seed, pair_counter),
            **look_ahead(parts),
            **listed(indptr, col, edge),
            "heads": table.ctypes.data,
            "num_heads": heads,
            "keys": key.size(2),
            "score_size": width,
            "value_size": size,
        }
    )
    pair_size = heads // len(ranges) * (width + size)
    pairs = col.size(0) // indptr.size(0)
    blocks = num_blocks(pairs, nodes, pair_size)
    tasks = [(b, *some, block, blocks) for b in range(batch) for some in ranges for block in range(blocks)]
    run_tasks(
        find_kernel("forward", int(att is not None), query, value), args, tasks, batch * pairs * heads * (width + size)
    )
    return out, lse


@csr_forward.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    indptr: Tensor,
    col: Tensor,
    edge: Tensor,
    t_indptr: Tensor,
    t_row: Tensor,
    t_edge: Tensor,
    add: Tensor | None,
    key_vectors: Tensor | None,
    value_vectors: Tensor | None,
    att: Tensor | None,
    seed: Tensor | None,
    scale: float,
    cap: float,
    slope: float,
    dropout_p: float,
    pair_counter: bool,
) -> tuple[Tensor, Tensor]:
    batch, heads, nodes, _ = query.shape
    return empty_nodes(query, heads, value.shape[3]), query.new_empty(batch, heads, nodes)


@torch.library.custom_op("unified_attn::csr_backward", mutates_args=(), device_types="cpu")
def csr_backward(
    g_out: Tensor,
    g_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    indptr: Tensor,
    col: Tensor,
    edge: Tensor,
    t_indptr: Tensor,
    t_row: Tensor,
    t_edge: Tensor,
    add: Tensor | None,
    key_vectors: Tensor | None,
    value_vectors: Tensor | None,
    att: Tensor | None,
    seed: Tensor | None,
    scale: float,
    cap: float,
    slope: float,
    dropout_p: float,
    pair_counter: bool,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, add, key_vectors, value_vectors and att; empty where not needed."""
    grads = _empty_grads(query, key, value, add, key_vectors, value_vectors, att, needs)
    dq, dk, dv, dadd, dkvec, dvvec, datt = grads
    batch, heads, nodes, width = query.shape
    keys, size = key.size(2), value.size(-1)
    for grad in (dadd, dkvec, dvvec):  # added to, and pairs that no row lists have gradient 0
        grad.zero_()
    if batch == 0 or heads == 0 or nodes == 0 or keys == 0:
        for grad in (dq, dk, dv, datt):
            grad.zero_()
        return grads
    query, key, value, g_out, out = (
        dense_last(query),
        dense_last(key),
        dense_last(value),
        dense_last(g_out),
        dense_last(out),
    )
    key_vectors, value_vectors, att = map(dense_last_or_none, (key_vectors, value_vectors, att))
    form = int(att is not None)
    indptr, col, edge = indptr.contiguous(), col.contiguous(), edge.contiguous()
    t_indptr, t_row, t_edge = t_indptr.contiguous(), t_row.contiguous(), t_edge.contiguous()
    ranges = head_ranges(query, key, value)
    if len(ranges) == 1:  # a query's statistics lie as its heads do
        stats = query.new_empty(batch, nodes, heads, 2).transpose(1, 2)
    else:
        stats = query.new_empty(batch, heads, nodes, 2)
    pair_size = heads // len(ranges) * (width + size)
    pairs = col.size(0) // indptr.size(0)
    blocks = num_blocks(pairs, nodes, pair_size)
    partial_datt = query.new_zeros(blocks if needs[6] else 0, heads, width)
    table = head_table(
        heads,
        [
            key, value, key_vectors, value_vectors,
            dk if needs[1] else None, dv if needs[2] else None,
            dkvec if needs[4] else None, dvvec if needs[5] else None,
        ],
        [1] * 8,
    )  # fmt: skip
    shared: dict[str, int | float] = {
        **strided("q", query),
        **strided("k", key),
        **strided("v", value),
        **strided("out", out),
        **strided("lse", lse),
        **strided("g_out", g_out),
        **strided("g_lse", g_lse),
        **strided("stats", stats),
        **strided("add", add, broadcast=True),
        **strided("kvec", key_vectors),
        **strided("vvec", value_vectors),
        **strided("att", att),
        **score_options(scale, cap, slope, dropout_p, seed, pair_counter),
        "heads": table.ctypes.data,
        "num_heads": heads,
        "keys": keys,
        "score_size": width,
        "value_size": size,
    }

    # Where heads share one number of add's gradient, one task has to add them up.
    row_ranges = [(0, heads)] if needs[3] and add is not None and add.size(1) < heads else ranges
    parts = {**prefetch("k", key, len(row_ranges)), **prefetch("v", value, len(row_ranges))}
    if key.data_ptr() == value.data_ptr() and key.stride() == value.stride():
        parts["v_parts"] = 0
    by_rows = record(
        {
            **shared,
            **(strided("dq", dq) if needs[0] else {}),
            **(strided("dadd", dadd, broadcast=True) if needs[3] else {}),
            **(strided("dkvec", dkvec) if needs[4] else {}),
            **(strided("dvvec", dvvec) if needs[5] else {}),
            **(strided("datt", partial_datt) if needs[6] else {}),
            **look_ahead(parts),
            **listed(indptr, col, edge),
        }
    )
    kernel = find_kernel("rows", form, query, value)
    work = batch * pairs * heads * (width + size)
    if not (needs[3] or needs[4] or needs[5] or needs[6]):
        groups = [[(b, b + 1) for b in range(batch)]]
    elif indptr.size(0) == 1:
        groups = [[(0, batch)]]  # what belongs to a pair is added up over the batch
    else:
        groups = [[(b, b + 1)] for b in range(batch)]  # one number may lie in different rows: one after another
    for group in groups:
        tasks = [(*b, *some, block, blocks) for b in group for some in row_ranges for block in range(blocks)]
        run_tasks(kernel, by_rows, tasks, work)
    if needs[6]:
        # numpy adds the partial sums in order, on one thread.
        np.add.reduce(partial_datt.numpy(), axis=0, out=datt.numpy())

    if needs[1] or needs[2]:
        by_columns = record(
            {
                **shared,
                **(strided("dk", dk) if needs[1] else {}),
                **(strided("dv", dv) if needs[2] else {}),
                **look_ahead({**prefetch("k", query, len(ranges)), **prefetch("v", g_out, len(ranges))}),
                **listed(t_indptr, t_row, t_edge),
            }
        )
        blocks = num_blocks(pairs, keys, pair_size)
        columns = [(b, *some, block, blocks) for b in range(batch) for some in ranges for block in range(blocks)]
        run_tasks(find_kernel("columns", form, query, value), by_columns, columns, work)
    return grads


def _empty_grads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    add: Tensor | None,
    key_vectors: Tensor | None,
    value_vectors: Tensor | None,
    att: Tensor | None,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Space for each gradient, laid out as its operand; ``[0]`` where none is needed."""
    nodes = [
        empty_nodes(operand, operand.shape[1], operand.shape[3]) if need else query.new_empty(0)
        for operand, need in zip((query, key, value), needs[:3], strict=True)
    ]
    dadd = zeros_add(add) if add is not None and needs[3] else query.new_empty(0)
    others = [
        operand.new_empty(operand.shape) if operand is not None and need else query.new_empty(0)
        for operand, need in zip((key_vectors, value_vectors, att), needs[4:], strict=True)
    ]
    return nodes[0], nodes[1], nodes[2], dadd, others[0], others[1], others[2]


@csr_backward.register_fake
def _(
    g_out: Tensor,
    g_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    indptr: Tensor,
    col: Tensor,
    edge: Tensor,
    t_indptr: Tensor,
    t_row: Tensor,
    t_edge: Tensor,
    add: Tensor | None,
    key_vectors: Tensor | None,
    value_vectors: Tensor | None,
    att: Tensor | None,
    seed: Tensor | None,
    scale: float,
    cap: float,
    slope: float,
    dropout_p: float,
    pair_counter: bool,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_grads(query, key, value, add, key_vectors, value_vectors, att, needs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.options = inputs[:14], inputs[14:]
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, g_out: Tensor | None, g_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, out, lse = ctx.saved_tensors
    query, key, value = tensors[:3]
    if g_out is None:
        g_out = torch.zeros_like(out)
    places = (0, 1, 2, 9, 10, 11, 12)
    needs = [bool(ctx.needs_input_grad[place]) for place in places]
    grads = torch.ops.unified_attn.csr_backward(
        g_out, g_lse, query, key, value, out, lse, *tensors[3:], *ctx.options, needs
    )
    result: list[Tensor | None] = [None] * 19
    for place, need, grad in zip(places, needs, grads, strict=True):
        result[place] = grad if need else None
    return tuple(result)


csr_forward.register_autograd(_differentiate, setup_context=_save)
csr_backward.register_autograd(refuse_second_derivative)
