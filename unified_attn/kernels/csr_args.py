"""What the CSR kernels are told: one record of addresses, strides, sizes and options.

Kernels take this record instead of arrays, since that keeps one compiled kernel for all layouts: nothing is copied
because of its strides. Addresses and strides are in bytes; an address of 0 means that the operand is absent.
"""

import struct
from typing import Any

import numpy as np
from torch import Tensor

HEADS = ("k", "v", "kvec", "vvec", "kweight", "dk", "dv", "dkvec", "dvvec", "dkweight")
"""The fields of the head table, 8 bytes each: where a query head's own head begins in these operands."""

CHUNK = 128
"""Pairs of a row that are handled at once: what a chunk reads (128 pairs of 1 KiB) stays in the second-level cache."""

_STRIDED = {
    # name: strides
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

_INTEGERS = (
    ["indptr", "indptr_b", "col", "edge", "heads"]  # heads: per query head, byte offsets (see head_table)
    + ["num_heads", "rows", "keys", "score_size", "value_size", "kfeat_size", "vfeat_size"]
    + ["pair_counter", "drop", "drop_from", "seed"]
    + ["ahead", "k_parts", "k_step", "k_lines", "v_parts", "v_step", "v_lines"]  # prefetch
    + [name + suffix for name, strides in _STRIDED.items() for suffix in ["", *("_" + s for s in strides)]]
)
_FLOATS = ["scale", "cap", "slope", "drop_gain"]

ARGS = np.dtype([(name, np.int64) for name in _INTEGERS] + [(name, np.float64) for name in _FLOATS])
_PLACES = {name: place for place, name in enumerate([*_INTEGERS, *_FLOATS])}
_LAYOUT = struct.Struct(f"={len(_INTEGERS)}q{len(_FLOATS)}d")


def strided(name: str, tensor: Tensor | None, broadcast: bool = False) -> dict[str, int]:
    """The record's entries for one operand, whose last dimension (if it has more than its strides name) is dense.

    Args:
        name: One of the operands.
        tensor: Its values, or None where it is absent.
        broadcast: A size of 1 counts for every index.
    """
    if tensor is None:
        return {}
    entries = {name: tensor.data_ptr()}
    for dim, letter in enumerate(_STRIDED[name]):
        stride = tensor.stride(dim) * tensor.element_size()
        entries[f"{name}_{letter}"] = 0 if broadcast and tensor.size(dim) == 1 else stride
    return entries


def record(entries: dict[str, int | float]) -> np.ndarray[Any, Any]:
    """The record, ``[1]``; what is not named is 0."""
    values: list[int | float] = [0] * len(_PLACES)
    for name, value in entries.items():
        values[_PLACES[name]] = value
    return np.frombuffer(bytearray(_LAYOUT.pack(*values)), dtype=ARGS)
