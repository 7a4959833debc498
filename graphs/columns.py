"""Attributes of nodes and edges: rows of names and values, or one column a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Column = Tensor | list[Any]


def columns_of(
    wanted: Sequence[str] | None, rows: Iterable[dict[str, Any]], names: list[str], defaults: Mapping[str, Any]
) -> dict[str, Column]:
    """A column for each attribute that is wanted, or that occurs.

    Raises:
        ValueError: If a row, named by ``names``, lacks an attribute that has no default.
    """
    rows = list(rows)
    columns = {}
    for attribute in dict.fromkeys(name for row in rows for name in row) if wanted is None else wanted:
        for row, name in zip(rows, names, strict=True):
            if attribute not in row and attribute not in defaults:
                raise ValueError(f"{name} has no attribute {attribute!r}; give it one, or a default in `defaults`")
        columns[attribute] = _column([row[attribute] if attribute in row else defaults[attribute] for row in rows])
    return columns


def _column(values: list[Any]) -> Column:
    """A tensor where that loses nothing: all bool, all numbers, or arrays and lists of numbers, all of one shape."""
    kinds = {type(value) for value in values}
    if kinds == {bool} or (kinds <= {int, float} and _exact(values)):
        return torch.tensor(values, dtype=torch.float64 if float in kinds else None)
    arrays = [array for value in values if (array := _array(value)) is not None]
    if arrays and len(arrays) == len(values) and len({(array.shape, array.dtype) for array in arrays}) == 1:
        return torch.stack(arrays)
    return values


def _exact(numbers: list[Any]) -> bool:
    """Whether float64 and int64 hold these numbers as they are."""
    return all(type(number) is float or abs(number) <= 2**53 for number in numbers)


def _array(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if type(value) is list and {type(entry) for entry in value} in ({int}, {float}) and _exact(value):
        return torch.tensor(value, dtype=torch.float64 if type(value[0]) is float else torch.int64)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "bif":
        return torch.from_numpy(np.array(value))
    return None


def rows_of(columns: Mapping[str, Column], count: int) -> list[dict[str, Any]]:
    """A row of names and Python values for each of so many nodes or edges."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in columns.items():
        for row, value in zip(rows, column.tolist() if isinstance(column, Tensor) else column, strict=True):
            row[name] = value
    return rows
