"""Node features before the first layer."""

from __future__ import annotations

from torch import Tensor


def row_normalized(x: Tensor) -> Tensor:
    """Each row divided by its sum, as GCN and GAT do with bags of words; rows that sum to 0 stay as they are.

    Args:
        x: ``[N, F]``, floating point.

    Reference: Kipf and Welling, 2017, section 5.2, arXiv:1609.02907; Velickovic et al., 2018, arXiv:1710.10903.

    Example:
        >>> import torch
        >>> row_normalized(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        tensor([[0.2500, 0.7500],
                [0.0000, 0.0000]])
    """
    if not x.is_floating_point():
        raise TypeError(f"x holds {x.dtype}; give floating point features")
    total = x.sum(-1, keepdim=True)
    return x / total.masked_fill(total == 0, 1)
