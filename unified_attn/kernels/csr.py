"""Fused attention over compressed rows on CPU: two custom operators, and their Python entry.

    logits_e = form(q_i, k_j + r_e) + add_e               for each pair e = (i, j) of row i
    out_i    = sum_e softmax_e(logits) drop_e (v_j + r'_e)
    lse_i    = log sum_e exp(logits_e)

    dot:  scale <q, k>, then cap tanh(. / cap) if cap > 0
    sum:  scale sum_d att_d leaky_relu(q_d + k_d)

Nothing of size pairs x heads x features is formed, forward or backward: the backward pass computes scores again from
lse, once by rows and once by columns. The cut into blocks depends on the rows alone and no two tasks write one number,
so that results are equal bit for bit in every run and for any number of threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unified_attn.dropout import DRAW_BITS, threshold

from . import threads
from .csr_args import CHUNK, record, strided

_BLOCK_WORK = 2**20  # floats read per task: near a millisecond, far more than handing a task over takes
_INLINE_WORK = 2**17  # problems up to here run in the calling thread
_CACHE_BYTES = 2**20  # operands up to here stay in the second-level cache, where prefetching is no help
_AHEAD_BYTES = 2**13  # how far ahead of the current pair to prefetch; the first-level cache holds several times that
_FLOAT_TYPES = (torch.float32, torch.float64)
_NEEDS = ("query", "key", "value", "add", "key_vectors", "value_vectors", "att")

_compiling = threading.Lock()


class CompressedRows(Protocol):
    """The pairs by query, and their transpose by key.

    ``indptr [R, Nq + 1]`` and ``t_indptr [R, Nk + 1]`` int64 with R = 1 or B, ``col``, ``edge``, ``t_row`` and
    ``t_edge`` ``[T]`` int32. ``edge`` is a pair's number in the caller's order, in which no batch item repeats one.
    """

    @property
    def indptr(self) -> Tensor: ...
    @property
    def col(self) -> Tensor: ...
    @property
    def edge(self) -> Tensor: ...
    @property
    def t_indptr(self) -> Tensor: ...
    @property
    def t_row(self) -> Tensor: ...
    @property
    def t_edge(self) -> Tensor: ...


def csr_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: CompressedRows,
    *,
    add: Tensor | None = None,
    key_vectors: Tensor | None = None,
    value_vectors: Tensor | None = None,
    att: Tensor | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    slope: float = 0.2,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
    pair_counter: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention over listed pairs, differentiable once in every tensor.

    Args:
        query: ``[B, Hq, Nq, W]``, float32 or float64.
        key: ``[B, Hk, Nk, W]``; key head = query head // (Hq // Hk).
        value: ``[B, Hv, Nk, Dv]``; Hv may differ from Hk.
        rows: The pairs.
        add: ``[1 or B, 1 or Hq, E]``, added to the logits. -inf hides a pair, and what is hidden is never read.
        key_vectors: ``[E, Hk, W]``, r.
        value_vectors: ``[E, Hv, Dv]``, r'.
        att: ``[Hq, W]``. With it the form is *sum*, without it *dot*.
        scale: Multiplies the form.
        cap: Soft cap of the dot form; 0 is none.
        slope: Of the LeakyReLU.
        dropout_p: Probability of dropping a pair after the softmax; ``dropout`` tells which.
        seed: int64, one element; required with dropout.
        pair_counter: Dropout counts a pair by i * Nk + j, not by its number.

    Returns:
        ``out [B, Hq, Nq, Dv]``, node-major in memory if the query is, and ``lse [B, Hq, Nq]``, natural. A row without
        a visible pair has out 0, lse -inf and gradients 0.

    Raises:
        ValueError: If shapes do not fit.
        TypeError: If dtypes do not.

    Cost: O(E Hq (W + Dv)) time; O(N H D) memory beside what is passed in.
    """
    _check(query, key, value, add, key_vectors, value_vectors, att, dropout_p, seed)
    out, lse = torch.ops.unified_attn.csr_forward(
        query, key, value, rows.indptr, rows.col, rows.edge, rows.t_indptr, rows.t_row, rows.t_edge,
        add, key_vectors, value_vectors, att, seed, scale, cap, slope, dropout_p, pair_counter,
    )  # fmt: skip
    return out, lse


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    add: Tensor | None,
    key_vectors: Tensor | None,
    value_vectors: Tensor | None,
    att: Tensor | None,
    dropout_p: float,
    seed: Tensor | None,
) -> None:
    for name, operand in (("query", query), ("key", key), ("value", value)):
        if operand.dim() != 4:
            raise ValueError(f"{name} must be [B, H, N, D], got shape {tuple(operand.shape)}")
    batch, heads = query.shape[:2]
    width, keys, size = query.shape[3], key.shape[2], value.shape[3]
    if key.shape[0] != batch or value.shape[0] != batch:
        raise ValueError(f"batch sizes differ: query {batch}, key {key.shape[0]}, value {value.shape[0]}")
    if key.shape[3] != width:
        raise ValueError(f"query and key must have one head size, got {width} and {key.shape[3]}")
    if value.shape[2] != keys:
        raise ValueError(f"key and value must have one length, got {keys} and {value.shape[2]}")
    for name, operand in (("key", key), ("value", value)):
        few = operand.shape[1]
        if (few == 0 and heads != 0) or (few != 0 and heads % few != 0):
            raise ValueError(f"query heads must be a multiple of {name} heads, got {heads} and {few}")
    if add is not None and (
        add.dim() != 3 or (add.shape[0] != 1 and add.shape[0] != batch) or (add.shape[1] != 1 and add.shape[1] != heads)
    ):
        raise ValueError(f"add must be [1 or {batch}, 1 or {heads}, E], got {tuple(add.shape)}")
    if key_vectors is not None and (key_vectors.dim() != 3 or key_vectors.shape[1:] != (key.shape[1], width)):
        raise ValueError(f"key_vectors must be [E, {key.shape[1]}, {width}], got {tuple(key_vectors.shape)}")
    if value_vectors is not None and (value_vectors.dim() != 3 or value_vectors.shape[1:] != (value.shape[1], size)):
        raise ValueError(f"value_vectors must be [E, {value.shape[1]}, {size}], got {tuple(value_vectors.shape)}")
    if att is not None and att.shape != (heads, width):
        raise ValueError(f"att must be [{heads}, {width}], got {tuple(att.shape)}")
    if query.dtype not in _FLOAT_TYPES:
        raise TypeError(f"query must be float32 or float64, got {query.dtype}")
    for name, other in (
        ("key", key), ("value", value), ("add", add), ("key_vectors", key_vectors), ("value_vectors", value_vectors),
        ("att", att),
    ):  # fmt: skip
        if other is not None and other.dtype != query.dtype:
            raise TypeError(f"{name} must have query's dtype {query.dtype}, got {other.dtype}")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p must be in [0, 1], got {dropout_p}")
    if dropout_p > 0.0 and (seed is None or seed.dtype != torch.int64 or seed.numel() != 1):
        raise ValueError("dropout needs seed, an int64 tensor of one element")


def _node_major(like: Tensor) -> bool:
    """Whether a node's heads lie next to each other, as in [N, H, D] seen as [1, H, N, D]."""
    return like.stride(1) < like.stride(2)


def _empty_nodes(like: Tensor, heads: int, size: int) -> Tensor:
    """Uninitialised ``[B, heads, N, size]`` in the order of ``like [B, H, N, D]``."""
    batch, _, nodes, _ = like.shape
    if _node_major(like):
        return like.new_empty(batch, nodes, heads, size).transpose(1, 2)
    return like.new_empty(batch, heads, nodes, size)


def _zeros_add(add: Tensor) -> Tensor:
    """Zeros like ``add [B, H, E]``, with a pair's heads next to each other if they are in ``add``."""
    batch, heads, pairs = add.shape
    if add.stride(1) < add.stride(2):
        return add.new_zeros(batch, pairs, heads).transpose(1, 2)
    return add.new_zeros(batch, heads, pairs)


def _dense(tensor: Tensor) -> Tensor:
    """The same values with a dense last dimension; copied only if it is not."""
    return tensor if tensor.size(-1) <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _dense_optional(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _dense(tensor)


def _pairs(indptr: Tensor, col: Tensor, edge: Tensor) -> dict[str, int | float]:
    """The record's entries for compressed rows, which must be contiguous."""
    return {
        "indptr": indptr.data_ptr(),
        "indptr_b": indptr.stride(0) * 8 if indptr.size(0) > 1 else 0,
        "col": col.data_ptr(),
        "edge": edge.data_ptr(),
        "rows": indptr.size(1) - 1,
    }


def _lanes(size: int, bits: int) -> tuple[int, int]:
    """Width and kind of the vectors for heads of ``size`` floats; few distinct ones, as each pair is compiled once."""
    from .lanes import MANY, ONE, TAIL

    if size == 1:
        return 1, ONE
    for width in (32, 16, 8):
        if size == width:
            return width, ONE
        if size > width and size % width == 0:
            return width, MANY
    return (16, TAIL) if bits == 32 and size > 8 else (8, TAIL)


def _kernel(which: str, form: int, query: Tensor, value: Tensor) -> Callable[..., None]:
    """A compiled kernel, by module name."""
    from . import csr_backward_columns, csr_backward_rows, csr_forward

    module: Any = {"forward": csr_forward, "rows": csr_backward_rows, "columns": csr_backward_columns}[which]
    bits = 8 * query.element_size()
    with _compiling:
        kernel: Callable[..., None] = module.make(
            form, bits, *_lanes(query.size(-1), bits), *_lanes(value.size(-1), bits)
        )
    return kernel


def _head_table(heads: int, parts: list[Tensor | None], dims: list[int]) -> np.ndarray[Any, Any]:
    """``[Hq, 8]``: byte offsets of each query head's own head in grouped operands; absent ones have offset 0."""
    table = np.zeros((heads, len(parts)), dtype=np.int64)
    for field, (part, dim) in enumerate(zip(parts, dims, strict=True)):
        if part is not None and part.numel() > 0:
            group = heads // part.size(dim)
            table[:, field] = np.arange(heads) // group * (part.stride(dim) * part.element_size())
    return table


def _head_ranges(query: Tensor, key: Tensor, value: Tensor) -> list[tuple[int, int]]:
    """The query heads that one task handles.

    All of them where the heads of a node lie together, so that they are read together. Otherwise as few as share no key
    or value head with others: then what is gathered from at one time is smaller, and more of it stays in the cache.
    """
    heads = query.size(1)
    if heads == 1 or _node_major(key) or _node_major(value):
        return [(0, heads)]
    unit = math.lcm(heads // key.size(1), heads // value.size(1))
    return [(first, first + unit) for first in range(0, heads, unit)]


def _prefetch(prefix: str, tensor: Tensor, ranges: int) -> dict[str, int]:
    """How to prefetch one node of ``[B, H, N, D]``: as one piece if its heads are dense, else head by head."""
    _, heads, nodes, size = tensor.shape
    heads = max(heads // ranges, 1)
    item = tensor.element_size()
    step, piece = tensor.stride(1) * item, size * item
    parts = heads
    if heads * nodes * piece <= _CACHE_BYTES or tensor.stride(2) == 0:
        parts = 0
    elif tensor.stride(1) == size or heads == 1:
        parts, piece = 1, heads * piece
    return {f"{prefix}_parts": parts, f"{prefix}_step": step, f"{prefix}_lines": -(-piece // 64)}


def _ahead(parts: dict[str, int]) -> dict[str, int]:
    """How many pairs ahead to prefetch."""
    lines = parts["k_parts"] * parts["k_lines"] + parts["v_parts"] * parts["v_lines"]
    return {**parts, "ahead": min(max(_AHEAD_BYTES // (64 * lines), 2), 64) if lines else 0}


def _options(
    scale: float, cap: float, slope: float, dropout_p: float, seed: Tensor | None, pair_counter: bool
) -> dict[str, int | float]:
    entries: dict[str, int | float] = {"scale": scale, "cap": cap, "slope": slope, "pair_counter": int(pair_counter)}
    if dropout_p > 0.0 and seed is not None:
        entries["drop"] = 1
        entries["drop_from"] = threshold(dropout_p) if dropout_p < 1.0 else 2**DRAW_BITS
        entries["drop_gain"] = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
        entries["seed"] = int(seed.reshape(()).item())
    return entries


def _blocks(pairs: int, nodes: int, pair_size: int) -> int:
    """How many blocks rows are cut into: from the data alone, never from the number of threads."""
    return max(1, min((pairs + 2 * nodes) * pair_size // _BLOCK_WORK, nodes))


def _run(kernel: Callable[..., None], args: np.ndarray[Any, Any], tasks: Sequence[tuple[int, ...]], work: int) -> None:
    """Run ``kernel(args, scratch, *task)`` for each task."""
    scratch_size = 4 * (CHUNK + 8) + 2 * int(args["num_heads"][0])

    def start() -> Callable[[int], None]:
        scratch = np.empty(scratch_size, dtype=np.float64)
        address = scratch.ctypes.data

        def run(index: int, keep: Any = scratch) -> None:
            kernel(args, address, *tasks[index])

        return run

    threads.run(start, len(tasks), parallel=work > _INLINE_WORK)


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
    out = _empty_nodes(query, heads, size)
    lse = query.new_empty(batch, heads, nodes)
    if out.numel() == 0 and lse.numel() == 0:
        return out, lse
    if key.numel() == 0 and key.size(2) == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    query, key, value = _dense(query), _dense(key), _dense(value)
    key_vectors, value_vectors, att = map(_dense_optional, (key_vectors, value_vectors, att))
    indptr, col, edge = indptr.contiguous(), col.contiguous(), edge.contiguous()
    table = _head_table(heads, [key, value, key_vectors, value_vectors] + [None] * 4, [1] * 8)
    ranges = _head_ranges(query, key, value)
    parts = {**_prefetch("k", key, len(ranges)), **_prefetch("v", value, len(ranges))}
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
            **_options(scale, cap, slope, dropout_p, seed, pair_counter),
            **_ahead(parts),
            **_pairs(indptr, col, edge),
            "heads": table.ctypes.data,
            "num_heads": heads,
            "keys": key.size(2),
            "score_size": width,
            "value_size": size,
        }
    )
    pair_size = heads // len(ranges) * (width + size)
    pairs = col.size(0) // indptr.size(0)
    blocks = _blocks(pairs, nodes, pair_size)
    tasks = [(b, *some, block, blocks) for b in range(batch) for some in ranges for block in range(blocks)]
    _run(_kernel("forward", int(att is not None), query, value), args, tasks, batch * pairs * heads * (width + size))
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
    return _empty_nodes(query, heads, value.shape[3]), query.new_empty(batch, heads, nodes)


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
    query, key, value, g_out, out = _dense(query), _dense(key), _dense(value), _dense(g_out), _dense(out)
    key_vectors, value_vectors, att = map(_dense_optional, (key_vectors, value_vectors, att))
    form = int(att is not None)
    indptr, col, edge = indptr.contiguous(), col.contiguous(), edge.contiguous()
    t_indptr, t_row, t_edge = t_indptr.contiguous(), t_row.contiguous(), t_edge.contiguous()
    ranges = _head_ranges(query, key, value)
    if len(ranges) == 1:  # a query's statistics lie as its heads do
        stats = query.new_empty(batch, nodes, heads, 2).transpose(1, 2)
    else:
        stats = query.new_empty(batch, heads, nodes, 2)
    pair_size = heads // len(ranges) * (width + size)
    pairs = col.size(0) // indptr.size(0)
    blocks = _blocks(pairs, nodes, pair_size)
    partial_datt = query.new_zeros(blocks if needs[6] else 0, heads, width)
    table = _head_table(
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
        **_options(scale, cap, slope, dropout_p, seed, pair_counter),
        "heads": table.ctypes.data,
        "num_heads": heads,
        "keys": keys,
        "score_size": width,
        "value_size": size,
    }

    # Where heads share one number of add's gradient, one task has to add them up.
    row_ranges = [(0, heads)] if needs[3] and add is not None and add.size(1) < heads else ranges
    parts = {**_prefetch("k", key, len(row_ranges)), **_prefetch("v", value, len(row_ranges))}
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
            **_ahead(parts),
            **_pairs(indptr, col, edge),
        }
    )
    kernel = _kernel("rows", form, query, value)
    work = batch * pairs * heads * (width + size)
    if not (needs[3] or needs[4] or needs[5] or needs[6]):
        groups = [[(b, b + 1) for b in range(batch)]]
    elif indptr.size(0) == 1:
        groups = [[(0, batch)]]  # what belongs to a pair is added up over the batch
    else:
        groups = [[(b, b + 1)] for b in range(batch)]  # one number may lie in different rows: one after another
    for group in groups:
        tasks = [(*b, *some, block, blocks) for b in group for some in row_ranges for block in range(blocks)]
        _run(kernel, by_rows, tasks, work)
    if needs[6]:
        # numpy adds the partial sums in order, on one thread.
        np.add.reduce(partial_datt.numpy(), axis=0, out=datt.numpy())

    if needs[1] or needs[2]:
        by_columns = record(
            {
                **shared,
                **(strided("dk", dk) if needs[1] else {}),
                **(strided("dv", dv) if needs[2] else {}),
                **_ahead({**_prefetch("k", query, len(ranges)), **_prefetch("v", g_out, len(ranges))}),
                **_pairs(t_indptr, t_row, t_edge),
            }
        )
        blocks = _blocks(pairs, keys, pair_size)
        columns = [(b, *some, block, blocks) for b in range(batch) for some in ranges for block in range(blocks)]
        _run(_kernel("columns", form, query, value), by_columns, columns, work)
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
        _empty_nodes(operand, operand.shape[1], operand.shape[3]) if need else query.new_empty(0)
        for operand, need in zip((query, key, value), needs[:3], strict=True)
    ]
    dadd = _zeros_add(add) if add is not None and needs[3] else query.new_empty(0)
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


def _refuse(ctx: Any, *grads: Tensor | None) -> None:
    from ..errors import UnsupportedError

    raise UnsupportedError(
        "csr",
        ["the fused csr back end has no second derivative; use backend='scatter' or backend='reference'"],
    )


csr_forward.register_autograd(_differentiate, setup_context=_save)
csr_backward.register_autograd(_refuse)
