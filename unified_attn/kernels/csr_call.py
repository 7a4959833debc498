"""What the operators of fused attention over compressed rows are given, in one record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from unified_attn.kernels.csr_args import strides

Layout = tuple[Any, ...]


class Call(NamedTuple):
    """The inputs of both operators, in this order; first those that get gradients. See ``csr_attention``.

    Args:
        value: None where the values are the keys, with one gradient.
        key_query: ``[B, Hq, Nq, F]``, with the dot form: what each query scores the key features with.
        key_weight: ``[Hk, F, W]``, with the sum form: what projects them.
        one_features: The value's features are the key's, with one gradient; ``value_features`` is None then.
        one_vectors: The same of stored vectors, and of their code.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    add: Tensor | None
    key_vectors: Tensor | None
    value_vectors: Tensor | None
    key_features: Tensor | None
    key_query: Tensor | None
    key_weight: Tensor | None
    value_features: Tensor | None
    att: Tensor | None
    key_code: Tensor | None
    value_code: Tensor | None
    indptr: Tensor
    col: Tensor
    edge: Tensor
    t_indptr: Tensor
    t_row: Tensor
    t_edge: Tensor
    seed: Tensor | None
    scale: float
    cap: float
    slope: float
    dropout_p: float
    pair_counter: bool
    add_hides: bool
    one_features: bool
    one_vectors: bool

    @property
    def values(self) -> Tensor:
        return self.key if self.value is None else self.value

    @property
    def mixed_features(self) -> Tensor | None:
        """What is summed into mixed."""
        return self.key_features if self.one_features else self.value_features

    @property
    def mixed_vectors(self) -> Tensor | None:
        """What is added to values."""
        return self.key_vectors if self.one_vectors else self.value_vectors

    @property
    def form(self) -> int:
        return int(self.att is not None)

    @property
    def pairs(self) -> int:
        """Pairs a batch item."""
        return self.col.size(0) // max(self.indptr.size(0), 1)

    @property
    def pair_size(self) -> int:
        """Floats that a head reads for one pair."""
        sizes = [x.size(-1) for x in (self.key_features, self.mixed_features) if x is not None]
        return self.query.size(-1) + self.values.size(-1) + sum(sizes)

    @property
    def layout(self) -> Layout:
        """All that does not change from call to call of one program: sizes, strides, dtypes and options."""
        return (layout_of(self[: len(TENSORS)]), self[_FIRST_OPTION:])

    @property
    def numbers(self) -> tuple[int, float, float, float]:
        """The seed and the others that may change."""
        seed = 0 if self.seed is None or self.dropout_p == 0.0 else int(self.seed.item())
        return seed, self.scale, self.cap, self.slope

    def readable(self) -> Call:
        """The same as kernels read it: features next to each other, indices dense."""
        changed: dict[str, Tensor] = {}
        tensors: Iterable[Any] = self
        for name, x in zip(_READ, tensors, strict=False):
            if x is None or (x.is_contiguous() if name in _INDICES else name == "add" or dense_last(x) is x):
                continue
            changed[name] = x.contiguous()
        return self._replace(**changed) if changed else self  # type: ignore[arg-type]

    def operands(self) -> dict[str, Tensor | None]:
        """The record's operands, all but the rows."""
        return {
            "q": self.query,
            "k": self.key,
            "v": self.values,
            "add": self.add,
            "kvec": self.key_vectors,
            "vvec": self.mixed_vectors,
            "kcode": self.key_code,
            "vcode": self.value_code,
            "kfeat": self.key_features,
            "kquery": self.key_query,
            "kweight": self.key_weight,
            "vfeat": self.mixed_features,
            "att": self.att,
        }

    def check(self) -> None:
        """Raises unless sizes and dtypes fit; values are looked at elsewhere."""
        query, key, value = self.query, self.key, self.values
        for name, operand in (("query", query), ("key", key), ("value", value)):
            if operand.dim() != 4:
                raise ValueError(f"{name} must be [B, H, N, D], got shape {tuple(operand.shape)}")
        batch, heads, nodes, width = query.shape
        keys = key.shape[2]
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
        add, att = self.add, self.att
        if add is not None and (add.dim() != 3 or add.shape[0] not in (1, batch) or add.shape[1] not in (1, heads)):
            raise ValueError(f"add must be [1 or {batch}, 1 or {heads}, E], got {tuple(add.shape)}")
        if att is not None and att.shape != (heads, width):
            raise ValueError(f"att must be [{heads}, {width}], got {tuple(att.shape)}")
        if query.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"query must be float32 or float64, got {query.dtype}")
        for name in GRADIENTS:
            other = getattr(self, name)
            if other is not None and other.dtype != query.dtype:
                raise TypeError(f"{name} must have query's dtype {query.dtype}, got {other.dtype}")
        if not 0.0 <= self.dropout_p <= 1.0:
            raise ValueError(f"dropout_p must be in [0, 1], got {self.dropout_p}")
        if self.dropout_p > 0.0 and (self.seed is None or self.seed.dtype != torch.int64 or self.seed.numel() != 1):
            raise ValueError("dropout needs seed, an int64 tensor of one element")
        for name, pointers, size in (("indptr", self.indptr, nodes), ("t_indptr", self.t_indptr, keys)):
            if pointers.dim() != 2 or pointers.size(0) not in (1, batch) or pointers.size(1) != size + 1:
                raise ValueError(f"{name} must be [1 or {batch}, {size + 1}], got {tuple(pointers.shape)}")
            if pointers.dtype != torch.int64:
                raise TypeError(f"{name} must be int64, got {pointers.dtype}")
        for name in ("col", "edge", "t_row", "t_edge"):
            other = getattr(self, name)
            if other.dtype != torch.int32:
                raise TypeError(f"{name} must be int32, got {other.dtype}")
            if other.size(0) != self.col.size(0):
                raise ValueError(f"col and {name} must have one length, got {self.col.size(0)} and {other.size(0)}")
        for name in ("key_code", "value_code"):
            code = getattr(self, name)
            if code is not None and code.dtype != torch.int32:
                raise TypeError(f"{name} must be int32, got {code.dtype}")

    def check_codes(self) -> None:
        """Raises ValueError if a code is none of a row of its table."""
        for side, code, rows in (
            ("key", self.key_code, self.key_vectors),
            ("value", self.value_code, self.mixed_vectors),
        ):
            if code is None or rows is None or code.numel() == 0:
                continue
            if int(code.min()) < 0 or int(code.max()) >= rows.size(0):
                raise ValueError(
                    f"{side}_code must lie in 0..{rows.size(0) - 1}: {side}_vectors has {rows.size(0)} rows"
                )


_SCHEMA_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool"}
SCHEMA = ", ".join(f"{_SCHEMA_TYPES[kind]} {name}" for name, kind in get_type_hints(Call).items())
GRADIENTS = Call._fields[: Call._fields.index("att") + 1]
TENSORS = Call._fields[: Call._fields.index("seed") + 1]
_FIRST_OPTION = Call._fields.index("dropout_p")
"""From here on a call's fields are no tensors, and stay as they are from call to call of one program."""
_READ = TENSORS[:-1]
_INDICES = frozenset(_READ) - frozenset(GRADIENTS)
_BROADCAST = frozenset({"add", "kcode", "vcode", "dadd", "dkvec", "dvvec"})


def dense_last(tensor: Tensor) -> Tensor:
    """The same values with a dense last dimension; copied only if it is not."""
    return tensor if tensor.size(-1) <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def layout_of(tensors: tuple[Any, ...]) -> Layout:
    """Size, strides and dtype of each; None of what is absent."""
    return tuple([None if x is None else (x.shape, x.stride(), x.dtype) for x in tensors])


def all_strides(operands: dict[str, Tensor | None]) -> dict[str, int | float]:
    """The record's entries for the layouts of operands."""
    entries: dict[str, int | float] = {}
    for name, operand in operands.items():
        entries.update(strides(name, operand, broadcast=name in _BROADCAST))
    return entries
