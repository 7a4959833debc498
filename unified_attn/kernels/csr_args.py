"""What the CSR kernels are told: one record of addresses, strides, sizes and options.

Kernels take this record instead of arrays, since that keeps one compiled kernel for all layouts: nothing is copied
because of its strides. Addresses and strides are in bytes; an address of 0 means that the operand is absent.

What changes from call to call comes first, so that it is written in one go over a copy of the rest.
"""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

HEADS = ("k", "v", "kvec", "vvec", "kweight", "dk", "dv", "dkvec", "dvvec", "dkweight")
"""The fields of the head table, 8 bytes each: where a query head's own head begins in these operands."""

CHUNK = 128
"""Pairs of a row that are handled at once: what a chunk reads (128 pairs of 1 KiB) stays in the second-level cache."""

# Where kernels keep the numbers of a chunk: one a pair and head, in planes; and one a head. Two orders, chosen when a
# kernel is compiled. Joint: the heads of a pair lie next to each other, so that softmax works on eight heads at once;
# for nodes whose heads lie together, if there are enough of them. Else the pairs of a head lie next to each other, and
# softmax works on eight pairs at once. In both, heads are padded to a multiple of eight.

JOINT_HEADS = 4
"""From so many heads on they are joint: fewer would leave more lanes idle than they save."""

_PLANES, _NUMBERS = 4, 4  # at most: of scores, and of numbers a head


def scratch_floats(heads: int) -> int:
    """Floats that a task needs."""
    return (_PLANES * (CHUNK + 8) + _NUMBERS) * (-(-heads // 8) * 8)


_STRIDED = {
    # name: strides
    "indptr": "",  # a row's first pair; how far an item's rows are from the next one's is said apart
    "ends": "",  # and the one after its last
    "row": "",  # of pieces of rows, the number of the row
    "col": "",
    "edge": "",
    "batches": "",  # of the tasks: ranges of the batch, and of query heads, two numbers each
    "ranges": "",
    "q": "bhn",
    "k": "bhn",
    "v": "bhn",
    "out": "bhn",
    "add": "bhe",
    "kvec": "eh",
    "vvec": "eh",
    "kcode": "b",
    "vcode": "b",
    "kfeat": "e",
    "kquery": "bhn",
    "kweight": "hf",
    "vfeat": "e",
    "att": "h",
    "lse": "bhn",
    "mixed": "bhn",
    "g_out": "bhn",
    "g_lse": "bhn",
    "g_mixed": "bhn",
    "stats": "bhn",  # (lse, delta) of each query, next to each other
    "dq": "bhn",
    "dk": "bhn",
    "dv": "bhn",
    "dadd": "bhe",
    "dkvec": "beh",  # b, of this and the others that are no nodes': the block of rows that a partial sum belongs to
    "dvvec": "beh",
    "dkfeat": "e",
    "dkquery": "bhn",
    "dkweight": "bhf",
    "dvfeat": "e",
    "datt": "bh",
}

ADDRESSES = list(_STRIDED)
NUMBERS = ["seed", "scale", "cap", "slope"]

_FIXED = (
    ["heads", "num_heads", "rows", "keys", "score_size", "value_size", "kfeat_size", "vfeat_size"]  # heads: head_table
    + ["num_ranges", "blocks"]
    + ["indptr_b", "longest", "even", "left_out"]  # longer rows are left out, and counted; blocks of equally many rows
    + ["shared"]  # rows serve all items of the batch, which one task takes in order
    + ["added"]  # add hides nothing, and holds a number for all heads, or one a head, next to each other
    + ["lined"]  # q, k, att and kvec hold one number a head, all heads next to each other, a multiple of eight
    + ["packed_scores", "packed_values"]  # q, k and theirs, v and theirs: such heads of eight float32; see csr_packed
    + ["pair_counter", "drop", "drop_from"]
    + ["ahead", "k_parts", "k_step", "k_lines", "v_parts", "v_step", "v_lines"]  # prefetch
    + [f"{name}_{letter}" for name, strides in _STRIDED.items() for letter in strides]
)

ARGS = np.dtype(
    [(name, np.int64) for name in [*ADDRESSES, "seed"]]
    + [(name, np.float64) for name in [*NUMBERS[1:], "drop_gain"]]
    + [(name, np.int64) for name in _FIXED]
)
LEFT_OUT = ARGS.fields["left_out"][1]  # type: ignore[index]
"""Where in the record kernels count the rows that they left out, in bytes."""
_FRESH = struct.Struct(f"={len(ADDRESSES) + 1}q{len(NUMBERS) - 1}d")
PLACES = {name: place for place, name in enumerate(ADDRESSES)}

_COUNT = struct.Struct("=q")
_Bytes = ctypes.c_char * ARGS.itemsize


def strides(name: str, tensor: Tensor | None, broadcast: bool = False) -> dict[str, int | float]:
    """The record's entries for the layout of one operand; its last dimension (beside those named) is dense.

    Args:
        name: One of the operands.
        tensor: Its values, or None where it is absent.
        broadcast: A size of 1 counts for every index.
    """
    entries: dict[str, int | float] = {}
    if tensor is not None:
        for dim, letter in enumerate(_STRIDED[name]):
            stride = tensor.stride(dim) * tensor.element_size()
            entries[f"{name}_{letter}"] = 0 if broadcast and tensor.size(dim) == 1 else stride
    return entries


def fixed(entries: dict[str, int | float]) -> bytes:
    """A record without addresses and numbers; what is not named is 0."""
    record = np.zeros(1, dtype=ARGS)
    for name, value in entries.items():
        record[name] = value
    return record.tobytes()


def filled(fixed: bytes, addresses: Sequence[int], numbers: Sequence[int | float]) -> Any:
    """A record as a block of memory, for ``ctypes.addressof``."""
    record = _Bytes.from_buffer_copy(fixed)
    _FRESH.pack_into(record, 0, *addresses, *numbers)
    return record


def left_out(record: Any) -> int:
    """How often a row was left out, once a kernel has run."""
    count: int = _COUNT.unpack_from(record, LEFT_OUT)[0]
    return count
