"""Runs of consecutive numbers, end to end."""

from __future__ import annotations

import torch
from torch import Tensor


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """``starts[i], starts[i] + 1, ..., starts[i] + counts[i] - 1`` for each i, one run after the other.

    Args:
        starts: ``[R]`` int64.
        counts: ``[R]`` int64, 0 or more.

    Example:
        >>> ranges(torch.tensor([5, 0]), torch.tensor([2, 3]))
        tensor([5, 6, 0, 1, 2])
    """
    before = counts.cumsum(0) - counts
    return torch.arange(int(counts.sum())) + (starts - before).repeat_interleave(counts)


def pointers(counts: Tensor) -> Tensor:
    """Where each run begins, and where the last one ends: ``[R + 1]``.

    Example:
        >>> pointers(torch.tensor([2, 3]))
        tensor([0, 2, 5])
    """
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
