"""Models that classify the nodes of one graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, elu

from experiments.layers import Source, layer
from experiments.training.config import SettingError
from unified_attn import Graph


@dataclass
class NodeNetConfig:
    """Sizes of a node classifier.

    Args:
        residual: Residual blocks of norm, attention and feed-forward part, as in Platonov et al. 2023 (arXiv
            2302.11640, section 4); else plain layers with ELU, as in the GAT paper (arXiv 1710.10903, section 3.3).
        depth: Number of layers or blocks.
        heads: Of a layer, side by side; the last plain layer has one.
        channels: Size of a head.
        dropout: Of features; in plain layers of attention weights too.
    """

    residual: bool = False
    depth: int = 2
    heads: int = 8
    channels: int = 8
    dropout: float = 0.6

    def __post_init__(self) -> None:
        for name in ("depth", "heads", "channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must lie in 0..1, below 1")


def node_net(features: int, classes: int, model: str, config: NodeNetConfig, source: Source) -> nn.Module:
    """A module that maps features ``[N, F]`` and edges to logits ``[N, classes]``.

    Args:
        features: F.
        classes: Number of classes.
        model: `gat`, `gatv2`, `transformer`; in residual blocks also `gat-sep`, whose feed-forward part sees a node's
            own features beside what it heard.
        config: Sizes.
        source: Whose layers.
    """
    check_model(model, config)
    if config.residual:
        return ResidualNet(features, classes, model, config, source)
    return PlainNet(features, classes, model, config, source)


def check_model(model: str, config: NodeNetConfig) -> None:
    """Raises SettingError unless such a model can be made."""
    if model == "gat-sep" and not config.residual:
        raise SettingError("model is 'gat-sep', which has residual blocks, but net.residual is false")


class PlainNet(nn.Module):
    def __init__(self, features: int, classes: int, model: str, config: NodeNetConfig, source: Source) -> None:
        super().__init__()
        self.dropout = config.dropout
        width, layers = features, []
        for _ in range(config.depth - 1):
            layers.append(layer(source, model, width, config.channels, config.heads, dropout=config.dropout))
            width = config.heads * config.channels
        layers.append(layer(source, model, width, classes, 1, dropout=config.dropout))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor | Graph) -> Tensor:
        for n, attention in enumerate(self.layers):
            x = attention(dropout(elu(x) if n else x, self.dropout, self.training), edge_index)
        return x


class ResidualBlock(nn.Module):
    def __init__(self, model: str, config: NodeNetConfig, source: Source) -> None:
        super().__init__()
        width = config.heads * config.channels
        kind, self.separate = ("gat", True) if model == "gat-sep" else (model, False)
        # These graphs are listened to as they are: neither the paper nor we add loops to them.
        loops = {} if kind == "transformer" else {"add_self_loops": False}
        self.norm = nn.LayerNorm(width)
        self.attention = layer(source, kind, width, config.channels, config.heads, **loops)
        self.feed_forward = nn.Sequential(
            nn.Linear(width * (2 if self.separate else 1), width),
            nn.Dropout(config.dropout),
            nn.GELU(),
            nn.Linear(width, width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor, edge_index: Tensor | Graph) -> Tensor:
        own = self.norm(x)
        heard = self.attention(own, edge_index)
        return x + self.feed_forward(torch.cat([own, heard], dim=-1) if self.separate else heard)


class ResidualNet(nn.Module):
    def __init__(self, features: int, classes: int, model: str, config: NodeNetConfig, source: Source) -> None:
        super().__init__()
        width = config.heads * config.channels
        self.enter = nn.Sequential(nn.Linear(features, width), nn.Dropout(config.dropout), nn.GELU())
        self.blocks = nn.ModuleList(ResidualBlock(model, config, source) for _ in range(config.depth))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x: Tensor, edge_index: Tensor | Graph) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, edge_index)
        return self.leave(x)
