"""What functions of this package ask of their arguments."""

from __future__ import annotations

import torch
from torch import Tensor


def check_counts(**counts: int) -> None:
    """Raises ValueError, naming the first, if a count is negative."""
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count}; give 0 or more")


def check_numbers(name: str, numbers: Tensor, count: int) -> None:
    """Raises TypeError or ValueError unless these are int64 numbers of so many things, ``[*]``."""
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64:
        got = numbers.dtype if isinstance(numbers, Tensor) else type(numbers).__name__
        raise TypeError(f"{name} is {got}; give an int64 tensor of numbers")
    if numbers.dim() != 1:
        raise ValueError(f"{name} has shape {list(numbers.shape)}; it must have one dimension")
    wrong = ((numbers < 0) | (numbers >= count)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(f"{name}[{at}] is {int(numbers[at])}; it must lie in 0..{count - 1}")


def check_edges(edge_index: Tensor, num_nodes: int, num_targets: int | None = None) -> None:
    """Raises TypeError or ValueError unless these are edges of a graph of so many nodes (or sources, and targets)."""
    check_counts(num_nodes=num_nodes)
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        got = list(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise ValueError(f"edge_index is {got}; it must be a [2, E] tensor, sources then targets")
    for row, size in enumerate((num_nodes, num_nodes if num_targets is None else num_targets)):
        check_numbers(f"edge_index[{row}]", edge_index[row], size)
