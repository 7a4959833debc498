"""A learned value for each distance, up to a greatest one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.biases.base import Bias, widened
from unified_attn.biases.learned import check_heads, check_size
from unified_attn.pairs import Shape


class RelativeBias(Bias):
    """A learned value for each clipped distance: b_ij = weight[h, clip(j - i, -max_distance, max_distance)].

    i and j are positions. The weight starts at 0, so that an untrained bias changes nothing.

    Args:
        num_heads: Hq.
        max_distance: Distances beyond it count as it.

    Attributes:
        weight: ``[num_heads, 2 * max_distance + 1]``, from the farthest key before the query to the farthest after.

    Raises:
        TypeError: If a size is no integer.
        ValueError: If ``num_heads`` is below 1 or ``max_distance`` below 0, or, in a call, heads or device differ.

    Reference: clipping as in Shaw et al., 2018, arXiv 1803.02155, Eq. 4; one value a head as in T5 and Swin.

    Example:
        >>> bias = RelativeBias(1, max_distance=1)
        >>> _ = bias.weight.data.copy_(torch.tensor([[10.0, 20.0, 30.0]]))  # before, at, after the query
        >>> i, j = torch.arange(3)[:, None], torch.arange(3)
        >>> bias.add(torch.tensor(0), torch.tensor(0), i, j, None)
        tensor([[20., 30., 30.],
                [10., 20., 30.],
                [10., 10., 20.]], grad_fn=<IndexBackward0>)
    """

    weight: nn.Parameter
    relative = True

    def __init__(self, num_heads: int, max_distance: int) -> None:
        super().__init__()
        check_size("num_heads", num_heads)
        check_size("max_distance", max_distance, least=0)
        self.num_heads = num_heads
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(num_heads, 2 * max_distance + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 0."""
        nn.init.zeros_(self.weight)

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return widened(self.weight)[h, (j - i).clamp(-self.max_distance, self.max_distance) + self.max_distance]

    def check(self, shape: Shape) -> None:
        check_heads("RelativeBias", self.num_heads, self.weight, shape)

    def __repr__(self) -> str:
        return f"RelativeBias({self.num_heads}, max_distance={self.max_distance})"
