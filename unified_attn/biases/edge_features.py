"""Edge features: a learned map from what an edge carries to a value a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn._autocast import without_autocast
from unified_attn.biases.base import widened
from unified_attn.biases.edge import EdgeBias
from unified_attn.biases.learned import Maker, check_size
from unified_attn.pairs import check_floats, describe


class EdgeFeatures(Maker):
    """Features of an edge, mapped to a value a head: calling it on them gives the bias to pass on.

        b_e = <weight_h, edge_attr_e>

    The weight starts at 0, so that an untrained bias changes nothing. There is no constant: it would be the same for
    all keys of a query, which a softmax does not see.

    Computed in float32 (float64 for float64 features), under autocast too. Features that are not finite make NaN; those
    of a hidden edge reach nothing, the weight's gradient included.

    Args:
        edge_dim: F.
        num_heads: Hq.

    Attributes:
        weight: ``[num_heads, edge_dim]``, as in ``nn.Linear``.

    Raises:
        TypeError: If a size is no integer, or what it is called on holds no floats.
        ValueError: If a size is below 1, or what it is called on is not ``[E, F]`` or of another dtype or device.

    Example:
        >>> from unified_attn import Graph, attention_weights
        >>> features = EdgeFeatures(1, num_heads=1)
        >>> _ = features.weight.data.fill_(2.0)
        >>> graph, edge_attr = Graph(torch.tensor([[0, 1], [2, 2]])), torch.tensor([[0.0], [3.0]])
        >>> q = k = torch.zeros(1, 1, 3, 4)
        >>> attention_weights(q, k, mask=graph, bias=features(edge_attr)).detach()  # softmax of 0 and 6
        tensor([[[0.0025, 0.9975]]])
    """

    weight: nn.Parameter

    def __init__(self, edge_dim: int, num_heads: int) -> None:
        super().__init__()
        check_size("edge_dim", edge_dim)
        check_size("num_heads", num_heads)
        self.edge_dim = edge_dim
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.empty(num_heads, edge_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 0."""
        nn.init.zeros_(self.weight)

    def forward(self, edge_attr: Tensor) -> EdgeBias:
        """The bias of these edges: ``edge_attr`` is ``[E, F]`` in the caller's edge order."""
        values, weight = features(edge_attr, self.edge_dim, self.weight)
        return EdgeBias(product(values, weight))

    def __repr__(self) -> str:
        return f"EdgeFeatures({self.edge_dim}, {self.num_heads})"


def features(edge_attr: Tensor, edge_dim: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Edge features ``[E, F]`` and the weight that multiplies them, halves widened.

    Raises:
        TypeError: If they are no floats.
        ValueError: If shape, dtype or device do not fit.
    """
    check_floats("edge_attr", edge_attr, "give floats, [E, F]")
    if edge_attr.dim() != 2 or edge_attr.shape[1] != edge_dim:
        raise ValueError(f"edge_attr is {describe(edge_attr)}; it must be [E, F] with F = edge_dim = {edge_dim}")
    if edge_attr.device != weight.device:
        raise ValueError(f"edge_attr is on {edge_attr.device}, but the weight is on {weight.device}; move one of them")
    values, weight = widened(edge_attr), widened(weight)
    if values.dtype != weight.dtype:
        raise ValueError(f"edge_attr is {edge_attr.dtype}, but the weight is {weight.dtype}; convert one of them")
    return values, weight


def product(values: Tensor, weight: Tensor) -> Tensor:
    """Features ``[E, F]`` times weights ``[..., F]``: ``[E, ...]``, NaN for an edge that has one which is not finite.

    Such features are kept from the product itself: its gradient would multiply them even by the 0 of a hidden edge.
    """
    odd = ~values.isfinite().all(1, keepdim=True)
    with without_autocast(values.device):
        flat = values.masked_fill(odd, 0.0) @ weight.flatten(0, -2).t()
    products: Tensor = flat.masked_fill(odd, torch.nan).unflatten(1, weight.shape[:-1])
    return products
