"""What functions of this package ask of their arguments."""

from __future__ import annotations

import torch
from torch import Tensor


def check_counts(**counts: int) -> None:
    """Raises ValueError, naming the first, if a count is negative."""
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count}; give 0 or more")


def check_edges(edge_index: Tensor, num_nodes: int) -> None:
    """Raises TypeError or ValueError unless these are the edges of a graph of so many nodes."""
    check_counts(num_nodes=num_nodes)
    if edge_index.dtype != torch.int64:
        raise TypeError(f"edge_index holds {edge_index.dtype}; give int64")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index has shape {list(edge_index.shape)}; it must be [2, E], sources then targets")
    wrong = ((edge_index < 0) | (edge_index >= num_nodes)).nonzero()
    if len(wrong):
        row, edge = wrong[0].tolist()
        raise ValueError(f"edge_index[{row}, {edge}] is {int(edge_index[row, edge])}; nodes are 0..{num_nodes - 1}")
