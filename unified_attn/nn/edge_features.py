"""Projected edge features, as a bias of the operator."""

from __future__ import annotations

from torch import Tensor

from unified_attn.biases import Bias, PairVectors
from unified_attn.nn.heads import split_heads
from unified_attn.nn.linear import Linear


def edge_vectors(linear: Linear | None, edge_attr: Tensor | None, heads: int, *, value: bool) -> Bias | None:
    """W_e e added to the key of each edge, and on request to its value; None without features."""
    if linear is None or edge_attr is None:
        return None
    vectors = split_heads(linear(edge_attr), heads)
    return PairVectors(key=vectors, value=vectors if value else None)
