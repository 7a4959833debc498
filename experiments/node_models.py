"""Models that classify the nodes of one graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, elu

from experiments.layers import Source, layer


@dataclass
class CitationConfig:
    """The two layers of the GAT paper (Velickovic et al. 2018, section 3.3), or the same with another attention.

    Args:
        layer: `gat`, `gatv2` or `transformer`.
        heads: Of the first layer, side by side.
        channels: Size of each.
        out_heads: Of the second layer, averaged.
        dropout: Of features and of attention weights.
    """

    layer: str = "gat"
    heads: int = 8
    channels: int = 8
    out_heads: int = 1
    dropout: float = 0.6


class CitationNet(nn.Module):
    """Logits ``[N, classes]`` of features ``[N, F]``."""

    def __init__(self, features: int, classes: int, config: CitationConfig, source: Source) -> None:
        super().__init__()
        width, p = config.heads * config.channels, config.dropout
        self.p = p
        self.first = layer(source, config.layer, features, config.channels, config.heads, dropout=p)
        self.second = layer(source, config.layer, width, classes, config.out_heads, concat=False, dropout=p)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = elu(self.first(dropout(x, self.p, self.training), edge_index))
        return self.second(dropout(x, self.p, self.training), edge_index)


@dataclass
class ResidualConfig:
    """The residual models of Platonov et al. 2023 (arXiv 2302.11640, section 4): norm, attention, feed-forward, sum.

    Args:
        layer: `gat`, `gatv2` or `transformer` (their GT).
        separate: Show the feed-forward part a node's own features beside what it heard (their GAT-sep).
        width: Of every layer.
        heads: That share it.
        layers: Number of blocks.
        dropout: Of features.
    """

    layer: str = "gat"
    separate: bool = False
    width: int = 64
    heads: int = 8
    layers: int = 5
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, which {self.heads} heads cannot share; give a multiple")


class ResidualBlock(nn.Module):
    def __init__(self, config: ResidualConfig, source: Source) -> None:
        super().__init__()
        width = config.width
        # These graphs are listened to as they are: neither the paper nor we add loops to them.
        loops = {} if config.layer == "transformer" else {"add_self_loops": False}
        self.separate = config.separate
        self.norm = nn.LayerNorm(width)
        self.attention = layer(source, config.layer, width, width // config.heads, config.heads, **loops)
        self.feed_forward = nn.Sequential(
            nn.Linear(width * (2 if config.separate else 1), width),
            nn.Dropout(config.dropout),
            nn.GELU(),
            nn.Linear(width, width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        own = self.norm(x)
        heard = self.attention(own, edge_index)
        return x + self.feed_forward(torch.cat([own, heard], dim=-1) if self.separate else heard)


class ResidualNet(nn.Module):
    """Logits ``[N, classes]`` of features ``[N, F]``."""

    def __init__(self, features: int, classes: int, config: ResidualConfig, source: Source) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(features, config.width), nn.Dropout(config.dropout), nn.GELU())
        self.blocks = nn.ModuleList(ResidualBlock(config, source) for _ in range(config.layers))
        self.leave = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, classes))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, edge_index)
        return self.leave(x)
