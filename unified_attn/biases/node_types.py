"""Types of nodes: a learned value for each type of query with each type of key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.biases.base import Bias, widened
from unified_attn.biases.learned import Maker, at_batch, check_heads, check_size, codes_within, serves
from unified_attn.pairs import Shape, check_device, describe, hold


class NodeTypes(Maker):
    """A learned value for each type of query, type of key and head: calling it on the types gives the bias to pass on.

        b_ij = weight[h, query_types_i, key_types_j]

    The weight starts at 0, so that an untrained bias changes nothing. It lies on any mask.

    Args:
        num_types: T.
        num_heads: Hq.

    Attributes:
        weight: ``[num_heads, num_types, num_types]``: types of queries (targets), then of keys (sources).

    Raises:
        TypeError: If a size is no integer, or what it is called on holds no integers.
        ValueError: If a size is below 1, if types are not ``[N]`` or ``[B, N]`` or one is not in 0..T-1, or, in a call
            of the operator, if they do not fit q and k.

    Example:
        >>> from unified_attn import attention_weights
        >>> types = NodeTypes(2, num_heads=1)
        >>> _ = types.weight.data.copy_(torch.tensor([[[0.0, 3.0], [0.0, 0.0]]]).log1p())
        >>> q = k = torch.zeros(1, 1, 2, 4)  # node 0 is of type 0, and a key of type 1 is worth log 4 to it
        >>> attention_weights(q, k, bias=types(torch.tensor([0, 1]), torch.tensor([0, 1])))[0, 0].detach()
        tensor([[0.2000, 0.8000],
                [0.5000, 0.5000]])
    """

    weight: nn.Parameter

    def __init__(self, num_types: int, num_heads: int) -> None:
        super().__init__()
        check_size("num_types", num_types)
        check_size("num_heads", num_heads)
        self.num_types = num_types
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.empty(num_heads, num_types, num_types))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 0."""
        nn.init.zeros_(self.weight)

    def forward(self, query_types: Tensor, key_types: Tensor) -> NodeTypeBias:
        """The bias of nodes of these types: ``[Nq]`` or ``[B, Nq]``, and ``[Nk]`` or ``[B, Nk]`` integers."""
        codes = []
        for name, types in (("query_types", query_types), ("key_types", key_types)):
            checked = codes_within(name, types, 0, self.num_types - 1)
            if types.dim() not in (1, 2):
                raise ValueError(f"{name} is {describe(types)}; it must be [N] or [B, N]")
            codes.append(checked if types.dim() == 2 else checked[None])
        return NodeTypeBias(self.weight, *codes)

    def __repr__(self) -> str:
        return f"NodeTypes({self.num_types}, {self.num_heads})"


class NodeTypeBias(Bias):
    """What :class:`NodeTypes` gives.

    Args:
        weight: ``[Hq, T, T]``.
        query_types: ``[1 | B, Nq]``, in 0..T-1.
        key_types: ``[1 | B, Nk]``, likewise.
    """

    weight: Tensor
    query_types: Tensor
    key_types: Tensor
    space = "row"

    def __init__(self, weight: Tensor, query_types: Tensor, key_types: Tensor) -> None:
        super().__init__()
        hold(self, "weight", weight)
        hold(self, "query_types", query_types)
        hold(self, "key_types", key_types)

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return widened(self.weight)[h, at_batch(self.query_types, b, i), at_batch(self.key_types, b, j)]

    def check(self, shape: Shape) -> None:
        check_heads("NodeTypes", self.weight.shape[0], self.weight, shape)
        for name, types, size in (
            ("query_types", self.query_types, shape.num_queries),
            ("key_types", self.key_types, shape.num_keys),
        ):
            check_device(f"NodeTypes's {name}", types, shape)
            if not serves(types, shape) or types.shape[1] != size:
                raise ValueError(
                    f"NodeTypes's {name} have shape {list(types.shape)}, but q and k ask for [{size}] or [B, N] = "
                    f"[{shape.batch}, {size}]"
                )

    def __repr__(self) -> str:
        heads, types, _ = self.weight.shape
        return f"NodeTypes({types}, {heads})({list(self.query_types.shape)}, {list(self.key_types.shape)})"
