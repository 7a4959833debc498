"""Edge types: a learned value for each type and head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.biases.base import widened
from unified_attn.biases.edge import EdgeBias
from unified_attn.biases.learned import Maker, check_size, codes_within
from unified_attn.pairs import describe


class EdgeTypes(Maker):
    """A learned value for each type of edge and head: calling it on the types gives the bias to pass on.

        b_e = weight[types_e, h]

    The weight starts at 0, so that an untrained bias changes nothing.

    Args:
        num_types: K.
        num_heads: Hq.

    Attributes:
        weight: ``[num_types, num_heads]``.

    Raises:
        TypeError: If a size is no integer, or what it is called on holds no integers.
        ValueError: If a size is below 1, or types are not ``[E]`` or one is not in 0..K-1.

    Example:
        >>> types = EdgeTypes(2, num_heads=1)
        >>> _ = types.weight.data.copy_(torch.tensor([[0.0], [5.0]]))
        >>> types(torch.tensor([0, 1, 1])).values.detach().flatten()
        tensor([0., 5., 5.])
    """

    weight: nn.Parameter

    def __init__(self, num_types: int, num_heads: int) -> None:
        super().__init__()
        check_size("num_types", num_types)
        check_size("num_heads", num_heads)
        self.num_types = num_types
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.empty(num_types, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 0."""
        nn.init.zeros_(self.weight)

    def forward(self, types: Tensor) -> EdgeBias:
        """The bias of these edges: ``types`` is ``[E]`` in the caller's edge order."""
        codes = codes_within("types", types, 0, self.num_types - 1)
        if types.dim() != 1:
            raise ValueError(f"types is {describe(types)}; it must be [E], one integer an edge")
        return EdgeBias(widened(self.weight).index_select(0, codes))

    def __repr__(self) -> str:
        return f"EdgeTypes({self.num_types}, {self.num_heads})"
