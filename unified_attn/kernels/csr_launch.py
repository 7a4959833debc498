"""How a kernel is started: which one, on which blocks of rows, with what in its record."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from unified_attn.dropout import DRAW_BITS, threshold
from unified_attn.kernels import threads
from unified_attn.kernels.csr_args import CHUNK, HEADS

_BLOCK_WORK = 2**20  # floats read per task: near a millisecond, far more than handing a task over takes
_PARTIAL_FLOATS = 2**22  # at most for the partial sums of tables and weights, unless one sum alone is larger
_INLINE_WORK = 2**17  # problems up to here run in the calling thread
_CACHE_BYTES = 2**20  # operands up to here stay in the second-level cache, where prefetching is no help
_AHEAD_BYTES = 2**13  # how far ahead of the current pair to prefetch; the first-level cache holds several times that

_compiling = threading.Lock()


def node_major(like: Tensor) -> bool:
    """Whether a node's heads lie next to each other, as in [N, H, D] seen as [1, H, N, D]."""
    return like.stride(1) < like.stride(2)


def empty_nodes(like: Tensor, heads: int, size: int) -> Tensor:
    """Uninitialised ``[B, heads, N, size]`` in the order of ``like [B, H, N, D]``."""
    batch, _, nodes, _ = like.shape
    if node_major(like):
        return like.new_empty(batch, nodes, heads, size).transpose(1, 2)
    return like.new_empty(batch, heads, nodes, size)


def zeros_add(add: Tensor) -> Tensor:
    """Zeros like ``add [B, H, E]``, with a pair's heads next to each other if they are in ``add``."""
    batch, heads, pairs = add.shape
    if add.stride(1) < add.stride(2):
        return add.new_zeros(batch, pairs, heads).transpose(1, 2)
    return add.new_zeros(batch, heads, pairs)


def dense_last(tensor: Tensor) -> Tensor:
    """The same values with a dense last dimension; copied only if it is not."""
    return tensor if tensor.size(-1) <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def dense_last_or_none(tensor: Tensor | None) -> Tensor | None:
    """:func:`dense_last` of an operand that may be absent."""
    return None if tensor is None else dense_last(tensor)


def listed(indptr: Tensor, col: Tensor, edge: Tensor) -> dict[str, int | float]:
    """The record's entries for compressed rows, which must be contiguous."""
    return {
        "indptr": indptr.data_ptr(),
        "indptr_b": indptr.stride(0) * 8 if indptr.size(0) > 1 else 0,
        "col": col.data_ptr(),
        "edge": edge.data_ptr(),
        "rows": indptr.size(1) - 1,
    }


def lanes(size: int, bits: int) -> tuple[int, int]:
    """Width and kind of the vectors for heads of ``size`` floats; few distinct ones, as each pair is compiled once."""
    from unified_attn.kernels.lanes import MANY, ONE, TAIL

    if size == 1:
        return 1, ONE
    for width in (32, 16, 8):
        if size == width:
            return width, ONE
        if size > width and size % width == 0:
            return width, MANY
    return (16, TAIL) if bits == 32 and size > 8 else (8, TAIL)


def feature_lanes(features: list[Tensor | None]) -> int:
    """The kind of the 8 floats wide vectors for features of edges, or 0: they are compiled into a kernel if need be."""
    from unified_attn.kernels.lanes import MANY, TAIL

    sizes = [x.size(-1) for x in features if x is not None]
    if not sizes:
        return 0
    return TAIL if any(size % 8 for size in sizes) else MANY


def find_kernel(which: str, form: int, features: int, query: Tensor, value: Tensor) -> Callable[..., None]:
    """A compiled kernel, by module name."""
    from unified_attn.kernels import csr_backward_columns, csr_backward_rows, csr_forward

    module: Any = {"forward": csr_forward, "rows": csr_backward_rows, "columns": csr_backward_columns}[which]
    bits = 8 * query.element_size()
    with _compiling:
        kernel: Callable[..., None] = module.make(
            form, features, bits, *lanes(query.size(-1), bits), *lanes(value.size(-1), bits)
        )
    return kernel


def head_table(heads: int, parts: dict[str, tuple[Tensor | None, int]]) -> np.ndarray[Any, Any]:
    """``[Hq, len(HEADS)]``: byte offsets of each query head's own head in grouped operands; of absent ones 0.

    Args:
        heads: Hq.
        parts: By name, the operand and its dimension of heads.
    """
    table = np.zeros((heads, len(HEADS)), dtype=np.int64)
    for name, (part, dim) in parts.items():
        if part is not None and part.numel() > 0:
            group = heads // part.size(dim)
            table[:, HEADS.index(name)] = np.arange(heads) // group * (part.stride(dim) * part.element_size())
    return table


def head_ranges(query: Tensor, key: Tensor, value: Tensor) -> list[tuple[int, int]]:
    """The query heads that one task handles.

    All of them where the heads of a node lie together, so that they are read together. Otherwise as few as share no key
    or value head with others: then what is gathered from at one time is smaller, and more of it stays in the cache.
    """
    heads = query.size(1)
    if heads == 1 or node_major(key) or node_major(value):
        return [(0, heads)]
    unit = math.lcm(heads // key.size(1), heads // value.size(1))
    return [(first, first + unit) for first in range(0, heads, unit)]


def prefetch(prefix: str, tensor: Tensor, ranges: int) -> dict[str, int]:
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


def look_ahead(parts: dict[str, int]) -> dict[str, int]:
    """How many pairs ahead to prefetch."""
    lines = parts["k_parts"] * parts["k_lines"] + parts["v_parts"] * parts["v_lines"]
    return {**parts, "ahead": min(max(_AHEAD_BYTES // (64 * lines), 2), 64) if lines else 0}


def prefetched(key: Tensor, value: Tensor, ranges: int) -> dict[str, int]:
    """The record's entries for prefetching what a pair brings; what is one tensor is asked for once."""
    parts = {**prefetch("k", key, ranges), **prefetch("v", value, ranges)}
    if key.data_ptr() == value.data_ptr() and key.stride() == value.stride():
        parts["v_parts"] = 0
    return look_ahead(parts)


def score_options(
    scale: float, cap: float, slope: float, dropout_p: float, seed: Tensor | None, pair_counter: bool
) -> dict[str, int | float]:
    """The record's entries for the score and for dropout."""
    entries: dict[str, int | float] = {"scale": scale, "cap": cap, "slope": slope, "pair_counter": int(pair_counter)}
    if dropout_p > 0.0 and seed is not None:
        entries["drop"] = 1
        entries["drop_from"] = threshold(dropout_p) if dropout_p < 1.0 else 2**DRAW_BITS
        entries["drop_gain"] = 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
        entries["seed"] = int(seed.reshape(()).item())
    return entries


def fewer_blocks(blocks: int, tables: list[Tensor]) -> int:
    """As many as there may be if each keeps partial sums like these tables, from the data alone too."""
    return min(blocks, max(1, _PARTIAL_FLOATS // max(sum(table.numel() for table in tables), 1)))


def num_blocks(pairs: int, nodes: int, pair_size: int) -> int:
    """How many blocks rows are cut into: from the data alone, never from the number of threads."""
    return max(1, min((pairs + 2 * nodes) * pair_size // _BLOCK_WORK, nodes))


def run_tasks(
    kernel: Callable[..., None], args: np.ndarray[Any, Any], tasks: Sequence[tuple[int, ...]], work: int
) -> None:
    """Run ``kernel(args, scratch, *task)`` for each task."""
    scratch_size = 4 * (CHUNK + 8) + 2 * int(args["num_heads"][0])

    def start() -> Callable[[int], None]:
        scratch = np.empty(scratch_size, dtype=np.float64)
        address = scratch.ctypes.data

        def run(index: int, keep: Any = scratch) -> None:
            kernel(args, address, *tasks[index])

        return run

    threads.run(start, len(tasks), parallel=work > _INLINE_WORK)
