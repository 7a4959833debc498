"""How a kernel is started: which one, on which blocks of rows, with what in its record."""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from unified_attn.dropout import DRAW_BITS, threshold
from unified_attn.kernels import threads
from unified_attn.kernels.csr_args import (
    ADDRESSES,
    CHUNK,
    HEADS,
    JOINT_HEADS,
    PLACES,
    filled,
    fixed,
    left_out,
    scratch_floats,
)
from unified_attn.kernels.csr_call import Call, all_strides
from unified_attn.kernels.pages import empty

_LEAST_WORK, _BLOCK_WORK = 2**16, 2**18  # floats per task, 15 to 60 microseconds: handing it over takes less than one
_FEW_BLOCKS = 64  # up to so many tasks are small ones, so that threads end at one time
PAIR_WORK = 48  # floats that could be read in the time that a pair takes besides
_PIECE_WORK = 2**20  # floats read for one row: what is longer is cut
_PARTIAL_FLOATS = 2**22  # at most for the partial sums of tables and weights, unless one sum alone is larger
_INLINE_WORK = 2**18  # problems up to here run in the calling thread: waking another may take as long
_CACHE_BYTES = 2**20  # operands up to here stay in the second-level cache, where prefetching is no help
_AHEAD_BYTES = 2**13  # how far ahead of the current pair to prefetch; the first-level cache holds several times that
_KEPT_PLANS = 128

_log = logging.getLogger(__name__)
_compiling = threading.Lock()

Plan = TypeVar("Plan")


class Plans:
    """A small cache of what follows from layouts alone, least recently used first."""

    def __init__(self) -> None:
        self._kept: dict[object, Any] = {}
        self._lock = threading.Lock()

    def find(self, layout: object, make: Callable[[], Plan]) -> Plan:
        """What was made for this layout before, or what ``make`` makes now."""
        with self._lock:
            found: Plan | None = self._kept.pop(layout, None)
            if found is not None:
                self._kept[layout] = found
                return found
        found = make()
        with self._lock:
            self._kept[layout] = found
            while len(self._kept) > _KEPT_PLANS:
                del self._kept[next(iter(self._kept))]
        return found


Ranges = Sequence[tuple[int, int]]
"""Each from a first number to the one before the second."""


class Tasks(NamedTuple):
    """The tasks of one launch: each takes one range of the batch, one of query heads, and one block of rows.

    Args:
        batches: Ranges of the batch, in groups that are done one after the other.
        ranges: Ranges of query heads.
        blocks: Blocks of rows.
    """

    batches: Sequence[Ranges]
    ranges: Ranges
    blocks: int


class Launch:
    """A kernel with all but addresses and numbers: made once for a layout.

    Args:
        which: ``"forward"``, ``"rows"`` or ``"columns"``.
        call: The call, for its layout alone.
        operands: By name; of rows, too.
        entries: Others of the record's entries.
        heads: Operands whose heads query heads share, with the dimension of heads.
        tasks: What there is to do.
    """

    def __init__(
        self,
        which: str,
        call: Call,
        operands: dict[str, Tensor | None],
        entries: dict[str, int | float],
        heads: dict[str, tuple[Tensor | None, int]],
        tasks: Tasks,
    ) -> None:
        self._names = tuple((name, PLACES[name]) for name, x in operands.items() if x is not None)
        self._table = head_table(call.query.size(1), heads)  # kept, since the record holds its address
        self._groups = [torch.tensor(group, dtype=torch.int64) for group in tasks.batches]
        self._ranges = torch.tensor(tasks.ranges, dtype=torch.int64)
        self._tasks = len(tasks.batches[0]) * len(tasks.ranges) * tasks.blocks
        features = {"kfeat_size": call.key_features, "vfeat_size": call.mixed_features}
        self._fixed = fixed(
            {
                **all_strides(operands),
                **dropping(call),
                **{name: 0 if x is None else x.size(1) for name, x in features.items()},
                "num_heads": call.query.size(1),
                "keys": call.t_indptr.size(1) - 1,  # of pieces of keys there are more
                "score_size": call.query.size(3),
                "value_size": call.values.size(3),
                "longest": 2**62,
                "num_ranges": len(tasks.ranges),
                "blocks": tasks.blocks,
                "added": int(added(call)),
                "lined": int(lined(call)),
                "packed_scores": int(packed(call, operands, ("q", "k", "dq", "dk")) and dense(call.att)),
                "packed_values": int(packed(call, operands, ("v", "out", "g_out", "dv")) and paired(operands)),
                **entries,
                "heads": self._table.ctypes.data,
            }
        )
        self._kernel = find_kernel(which, call)
        self._scratch_bytes = 8 * scratch_floats(call.query.size(1))
        work = call.query.size(0) * call.pairs * (call.query.size(1) * call.pair_size + PAIR_WORK)
        self._alone = work <= _INLINE_WORK

    def run(self, operands: dict[str, Any], numbers: tuple[int | float, ...]) -> bool:
        """Run it over these operands, which must be laid out as those that it was made for.

        Returns:
            Whether there were longer rows than it takes.
        """
        addresses = [0] * len(ADDRESSES)
        for name, place in self._names:
            addresses[place] = operands[name].data_ptr()
        indptr, ends = PLACES["indptr"], PLACES["ends"]
        addresses[ends] = addresses[ends] or addresses[indptr] + 8
        addresses[PLACES["ranges"]] = self._ranges.data_ptr()
        longer = False
        for group in self._groups:
            addresses[PLACES["batches"]] = group.data_ptr()
            record = filled(self._fixed, addresses, numbers)
            threads.run(
                self._kernel,
                ctypes.addressof(record),
                self._tasks,
                scratch_bytes=self._scratch_bytes,
                alone=self._alone,
            )
            longer |= left_out(record) > 0
        return longer


def node_major(like: Tensor) -> bool:
    """Whether a node's heads lie next to each other, as in [N, H, D] seen as [1, H, N, D]."""
    return like.stride(1) < like.stride(2)


def empty_nodes(like: Tensor, heads: int, size: int) -> Tensor:
    """Uninitialised ``[B, heads, N, size]`` in the order of ``like [B, H, N, D]``."""
    batch, _, nodes, _ = like.shape
    if node_major(like):
        return empty(like, batch, nodes, heads, size).transpose(1, 2)
    return empty(like, batch, heads, nodes, size)


def zeros_add(add: Tensor) -> Tensor:
    """Zeros like ``add [B, H, E]``, with a pair's heads next to each other if they are in ``add``."""
    batch, heads, pairs = add.shape
    if add.stride(1) < add.stride(2):
        return add.new_zeros(batch, pairs, heads).transpose(1, 2)
    return add.new_zeros(batch, heads, pairs)


def dropping(call: Call) -> dict[str, int | float]:
    """The record's entries for dropout."""
    p = call.dropout_p
    entries: dict[str, int | float] = {"pair_counter": int(call.pair_counter)}
    if p > 0.0:
        entries["drop"] = 1
        entries["drop_from"] = threshold(p) if p < 1.0 else 2**DRAW_BITS
        entries["drop_gain"] = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return entries


def lanes(size: int, bits: int) -> tuple[int, int]:
    """Width and kind of the vectors for heads of ``size`` floats; few distinct ones, as each pair is compiled once."""
    from unified_attn.kernels.lanes import MANY, ONE, TAIL

    if size == 1:
        return 1, ONE
    if bits == 64:  # for checks more than for speed: the fewer kernels, the less is compiled
        return 8, TAIL if size % 8 else MANY
    for width in (32, 16, 8):
        if size == width:
            return width, ONE
        if size > width and size % width == 0:
            return width, MANY
    return (16, TAIL) if size > 8 else (8, TAIL)


def feature_lanes(features: Iterable[Tensor | None]) -> int:
    """The kind of the 8 floats wide vectors for features of edges, or 0: they are compiled into a kernel if need be."""
    from unified_attn.kernels.lanes import MANY, TAIL

    sizes = [x.size(-1) for x in features if x is not None]
    if not sizes:
        return 0
    return TAIL if any(size % 8 for size in sizes) else MANY


def find_kernel(which: str, call: Call) -> int:
    """The address of a compiled kernel, by module name."""
    from unified_attn.kernels import csr_backward_columns, csr_backward_rows, csr_forward

    module: Any = {"forward": csr_forward, "rows": csr_backward_rows, "columns": csr_backward_columns}[which]
    bits = 8 * call.query.element_size()
    features = feature_lanes([call.key_features, call.mixed_features])
    vectors = (*lanes(call.query.size(-1), bits), *lanes(call.values.size(-1), bits))
    with _compiling:
        made, begin = module.make.cache_info().misses, time.perf_counter()
        address: int = module.make(call.form, features, int(joint(call)), bits, *vectors).address
        if module.make.cache_info().misses > made:
            seconds = time.perf_counter() - begin
            sizes = call.query.size(-1), call.values.size(-1)
            _log.info("%s kernel for heads of %d and %d floats: compiled, or loaded, in %.2f s", which, *sizes, seconds)
    return address


def joint(call: Call) -> bool:
    """Whether kernels work on several heads at once: see ``csr_args``."""
    together = node_major(call.key) or node_major(call.values)
    return together and call.query.size(1) >= JOINT_HEADS


def added(call: Call) -> bool:
    """Whether kernels may add to the scores of several heads at once, since nothing is hidden: see the record."""
    add = call.add
    return add is not None and not call.add_hides and (add.size(1) == 1 or add.stride(1) == 1)


def lined(call: Call) -> bool:
    """Whether all that is scored holds one number a head, all heads next to each other, a multiple of eight."""
    _, heads, _, size = call.query.shape
    parts = [(call.query, 1), (call.key, 1), (call.att, 0)]
    parts += [] if call.key_vectors is None else [(call.key_vectors, 1)]
    return (
        size == 1
        and heads % 8 == 0
        and all(x is not None and x.size(dim) == heads and x.stride(dim) == 1 for x, dim in parts)
    )


def paired(operands: dict[str, Tensor | None]) -> bool:
    """Whether a node's statistics are (lse, delta) of one head after the other, or are not there."""
    stats = operands.get("stats")
    return stats is None or stats.stride(1) == 2


def dense(tensor: Tensor | None) -> bool:
    """Whether there are no gaps in it, or it is not there."""
    return tensor is None or tensor.is_contiguous()


def packed(call: Call, operands: dict[str, Tensor | None], names: tuple[str, ...]) -> bool:
    """Whether each of these that is there holds heads of eight float32 next to each other, as ``csr_packed`` asks."""
    heads = call.query.size(1)
    parts = [x for x in map(operands.get, names) if x is not None]
    return (
        call.query.dtype == torch.float32
        and heads % 8 == 0
        and all(x.size(1) == heads and x.size(-1) == 8 and x.stride(1) == 8 for x in parts)
    )


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


def heads_of(call: Call) -> dict[str, tuple[Tensor | None, int]]:
    """What :func:`head_table` takes, of a call's inputs."""
    return {
        "k": (call.key, 1),
        "v": (call.values, 1),
        "kvec": (call.key_vectors, 1),
        "vvec": (call.mixed_vectors, 1),
        "kweight": (call.key_weight, 0),
    }


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


def look_ahead(parts: dict[str, int]) -> dict[str, int | float]:
    """How many pairs ahead to prefetch."""
    lines = parts["k_parts"] * parts["k_lines"] + parts["v_parts"] * parts["v_lines"]
    return {**parts, "ahead": min(max(_AHEAD_BYTES // (64 * lines), 2), 64) if lines else 0}


def prefetched(key: Tensor, value: Tensor, ranges: int) -> dict[str, int | float]:
    """The record's entries for prefetching what a pair brings; what is one tensor is asked for once."""
    parts = {**prefetch("k", key, ranges), **prefetch("v", value, ranges)}
    if key is value:
        parts["v_parts"] = 0
    return look_ahead(parts)


def fewer_blocks(blocks: int, tables: list[Tensor]) -> int:
    """As many as there may be if each keeps partial sums like these tables, from the data alone too."""
    return min(blocks, max(1, _PARTIAL_FLOATS // max(sum(table.numel() for table in tables), 1)))


def num_blocks(pairs: int, nodes: int, pair_size: int) -> int:
    """How many blocks rows are cut into: from the data alone, never from the number of threads."""
    work = (pairs + 2 * nodes) * pair_size
    return max(1, min(max(work // _BLOCK_WORK, min(work // _LEAST_WORK, _FEW_BLOCKS)), nodes))


def longest_row(pair_size: int) -> int:
    """The most pairs of a row that one task takes: those of a block, in whole chunks."""
    return max(1, _PIECE_WORK // (max(pair_size, 1) * CHUNK)) * CHUNK
