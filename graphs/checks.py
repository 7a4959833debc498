"""What functions of this package ask of their arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.pairs import check_count, check_integers


def check_counts(**counts: int) -> None:
    """Raises TypeError or ValueError, naming the first, if a count is no integer or negative."""
    for name, count in counts.items():
        check_count(name, count, "give an integer, 0 or more")
        if count < 0:
            raise ValueError(f"{name} is {count}; give 0 or more")


def check_numbers(name: str, numbers: Tensor, count: int | None = None) -> None:
    """Raises TypeError or ValueError unless these are int64 numbers of so many things (None: not known), ``[*]``."""
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64:
        got = numbers.dtype if isinstance(numbers, Tensor) else type(numbers).__name__
        raise TypeError(f"{name} is {got}; give an int64 tensor of numbers")
    if numbers.dim() != 1:
        raise ValueError(f"{name} has shape {list(numbers.shape)}; it must have one dimension")
    wrong = (numbers < 0 if count is None else (numbers < 0) | (numbers >= count)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        right = "be 0 or more" if count is None else f"lie in 0..{count - 1}"
        raise ValueError(f"{name}[{at}] is {int(numbers[at])}; it must {right}")


def checked_edges(edge_index: Tensor, num_nodes: int, num_targets: int | None = None) -> Tensor:
    """The edges as int64, whatever integers they came as.

    Raises:
        TypeError: If they are no integers.
        ValueError: If they are no edges of a graph of so many nodes (or sources, and targets).
    """
    check_counts(num_nodes=num_nodes)
    check_integers("edge_index", edge_index, "give a [2, E] tensor of integers, sources then targets")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index is {list(edge_index.shape)}; it must be a [2, E] tensor, sources then targets")
    edge_index = edge_index.long()
    for row, size in enumerate((num_nodes, num_nodes if num_targets is None else num_targets)):
        check_numbers(f"edge_index[{row}]", edge_index[row], size)
    return edge_index
