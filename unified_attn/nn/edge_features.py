"""Projected edge features, as a bias of the operator."""

from __future__ import annotations

from torch import Tensor

from unified_attn.biases import Bias, EdgeProjection
from unified_attn.nn.linear import Linear


def edge_vectors(linear: Linear | None, edge_attr: Tensor | None, *, value: bool) -> Bias | None:
    """W_e e added to the key of each edge, and on request to its value; None without features."""
    if linear is None or edge_attr is None:
        return None
    linear.fit(edge_attr)
    return EdgeProjection(edge_attr, key=linear.weight, value=linear.weight if value else None)
