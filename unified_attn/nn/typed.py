"""Weights by node type and by relation, under the names of torch-geometric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unified_attn.nn.linear import Linear

NodeType = str
Relation = tuple[str, str, str]
"""(type of the source, name, type of the target)."""


class TypedLinear(nn.Module):
    """A linear map a type.

    Args:
        in_channels: Input size of each type; -1: that of its first input.
        out_channels: Output size of all.

    Example:
        >>> TypedLinear({"paper": 3, "author": -1}, 4)("author", torch.zeros(2, 5)).shape
        torch.Size([2, 4])
    """

    def __init__(self, in_channels: Mapping[NodeType, int], out_channels: int) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({kind: Linear(size, out_channels) for kind, size in in_channels.items()})
        self.reset_parameters()  # a second time, as torch-geometric does, so that a seed gives the same weights

    def reset_parameters(self) -> None:
        """Draws all weights anew."""
        for linear in self.lins.values():
            linear.reset_parameters()  # type: ignore[operator]

    def forward(self, kind: NodeType, x: Tensor) -> Tensor:
        """x ``[N, in_channels]`` of one type to ``[N, out_channels]``."""
        out: Tensor = self.lins[kind](x)
        return out


class RelationLinear(nn.Module):
    """A square map a head and relation, without a bias.

    Args:
        size: D.
        num_heads: H.
        num_relations: R.
    """

    def __init__(self, size: int, num_heads: int, num_relations: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.empty(num_heads * num_relations, size, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws uniformly from +-1 / sqrt(D)."""
        nn.init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    def forward(self, relation: int, x: Tensor) -> Tensor:
        """x ``[N, H, D]`` to ``[N, H, D]``, by the maps of one relation."""
        weight = self.weight.unflatten(0, (self.num_heads, -1))[:, relation]
        return torch.einsum("nhd,hde->nhe", x, weight)


def parameters_by_name(names: Iterable[str], *shape: int) -> nn.ParameterDict:
    """Parameters of ones, a name each, in this order."""
    named = nn.ParameterDict()
    for name in names:  # one by one: a dictionary would be sorted
        named[inner_name(name)] = nn.Parameter(torch.ones(*shape))
    return named


def inner_name(name: str) -> str:
    """A name as an attribute: without dots, and in brackets where a dictionary has that attribute itself."""
    return (f"<{name}>" if hasattr(nn.ParameterDict, name) else name).replace(".", "#")
