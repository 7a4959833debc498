"""Biases that add vectors to keys and values, by name: see ``bias_cases``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.parity.bias_case import BiasCase, Exact, number_of_edges, rope
from tests.parity.grid import Grid
from tests.parity.mask_cases import MaskCase
from unified_attn import EdgeProjection, PairVectors, RelativeVectors


def stored(g: Grid, m: MaskCase, *, key: bool = False, value: bool = False) -> BiasCase:
    count = number_of_edges(m)
    key_name, key_values = g.leaf("key vectors", count, g.kv_heads, g.dim) if key else (None, None)
    value_name, value_values = g.leaf("value vectors", count, g.kv_heads, g.value_dim) if value else (None, None)
    return BiasCase(
        PairVectors(key=key_values, value=value_values),
        key_vectors=[lambda x, query, key: x[key_name]] if key else [],
        value_vectors=[lambda x, query, key: x[value_name]] if value else [],
    )


def relative(g: Grid, m: MaskCase, reach: int, *, key: bool = False, value: bool = False) -> BiasCase:
    """Tables of Shaw et al., 2018, Eq. 3 and 4, laid out at every entry."""
    bias = RelativeVectors(reach, g.dim, value_dim=g.value_dim if value else None, key=key, value=value)

    def table(side: str, size: int) -> list[Callable[[Exact, Tensor, Tensor], Tensor]]:
        name, values = g.leaf(f"relative {side}", 2 * reach + 1, size)
        g.given[name] = nn.Parameter(values.detach())
        setattr(bias, side, g.given[name])

        def at(x: Exact, query: Tensor, key: Tensor) -> Tensor:
            offset = g.k_positions[:, key] - g.q_positions[:, query]
            clipped = torch.where(offset > reach, reach, torch.where(offset < -reach, -reach, offset))
            return x[name][clipped + reach][:, :, None].expand(-1, -1, g.kv_heads, -1)

        return [at]

    return BiasCase(
        bias,
        key_vectors=table("key", g.dim) if key else [],
        value_vectors=table("value", g.value_dim) if value else [],
    )


def projection(g: Grid, m: MaskCase, *, key: bool = False, value: bool = False) -> BiasCase:
    """A linear map of three features; weights as torch.nn.Linear has them, and with the heads apart."""
    features, edge_attr = g.leaf("edge features", number_of_edges(m), 3)
    key_name, key_weight = g.leaf("key weight", g.kv_heads * g.dim, 3) if key else (None, None)
    value_name, value_weight = g.leaf("value weight", g.kv_heads, g.value_dim, 3) if value else (None, None)

    def at(name: str | None, size: int) -> Callable[[Exact, Tensor, Tensor], Tensor]:
        def vectors(x: Exact, query: Tensor, key: Tensor) -> Tensor:
            weight = x[name].reshape(g.kv_heads, size, 3)
            return (weight[None] * x[features][:, None, None]).sum(-1)

        return vectors

    return BiasCase(
        EdgeProjection(edge_attr, key_weight, value_weight),
        key_vectors=[at(key_name, g.dim)] if key else [],
        value_vectors=[at(value_name, g.value_dim)] if value else [],
    )


VECTORS: dict[str, Callable[[Grid, MaskCase], BiasCase]] = {
    "pair key": lambda g, m: stored(g, m, key=True),
    "pair value": lambda g, m: stored(g, m, value=True),
    "pair both": lambda g, m: stored(g, m, key=True, value=True),
    "rope + pair both": lambda g, m: stored(g, m, key=True, value=True) + rope(g, "half"),
    "relative vectors": lambda g, m: relative(g, m, 2, key=True, value=True),
    "relative key": lambda g, m: relative(g, m, 1, key=True),
    "relative + relative": lambda g, m: relative(g, m, 3, key=True) + relative(g, m, 1, key=True, value=True),
    "projection both": lambda g, m: projection(g, m, key=True, value=True),
    "projection key": lambda g, m: projection(g, m, key=True),
    "pair + relative": lambda g, m: stored(g, m, key=True, value=True) + relative(g, m, 1, key=True, value=True),
    "pair + projection": lambda g, m: stored(g, m, key=True) + projection(g, m, key=True, value=True),
    "rope + projection": lambda g, m: rope(g, "half") + projection(g, m, key=True, value=True),
}
