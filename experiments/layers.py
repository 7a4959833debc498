"""Graph attention layers by name, ours or torch-geometric's: a baseline is the same model with the other's layers."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from torch import nn

Source = Literal["unified_attn", "torch_geometric"]
LAYERS = {"gat": "GATConv", "gatv2": "GATv2Conv", "transformer": "TransformerConv"}


def layer(source: Source, kind: str, in_channels: int, out_channels: int, heads: int, **options: Any) -> nn.Module:
    """A layer `in_channels -> heads * out_channels` (or `out_channels` where heads are averaged).

    Args:
        source: Whose layer.
        kind: A key of LAYERS.
        in_channels: Size of a node's features.
        out_channels: Size of a head.
        heads: Number of heads.
        options: What both sources take: `concat`, `dropout`, `edge_dim`, `residual`, ...
    """
    if kind not in LAYERS:
        raise ValueError(f"layer is {kind!r}; choose one of {', '.join(LAYERS)}")
    return getattr(importlib.import_module(f"{source}.nn"), LAYERS[kind])(in_channels, out_channels, heads, **options)
