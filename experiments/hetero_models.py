"""Models that classify the nodes of one type among several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, elu

from experiments.layers import Source
from graphs.hetero import Relation
from unified_attn import GAT
from unified_attn.nn import HeadScale, HeteroAttention
from unified_attn.nn.linear import glorot

Model = Literal["hgt", "rgat", "han"]
Metadata = tuple[list[str], list[Relation]]


@dataclass
class HeteroNetConfig:
    """Sizes of a classifier of typed nodes.

    Args:
        depth: Number of layers.
        heads: Of a layer.
        channels: Size of a head.
        dropout: Of features.
    """

    depth: int = 2
    heads: int = 4
    channels: int = 16
    dropout: float = 0.5

    def __post_init__(self) -> None:
        for name in ("depth", "heads", "channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must lie in 0..1, below 1")


class HeteroClassifier(nn.Module):
    """Logits of the nodes of one type: a linear map a type, layers over all types, a linear map.

    Args:
        features: Size of a node's features, by type.
        metadata: Node types and relations.
        target: The type that has classes.
        classes: Their number.
        model: `hgt`, `rgat`, `han`.
        config: Sizes.
        source: Whose layers.
    """

    def __init__(
        self,
        features: dict[str, int],
        metadata: Metadata,
        target: str,
        classes: int,
        model: Model,
        config: HeteroNetConfig,
        source: Source,
    ) -> None:
        super().__init__()
        width = config.heads * config.channels
        self.target, self.dropout = target, config.dropout
        self.residual = model != "hgt"  # its layer has one
        make = ours if source == "unified_attn" else theirs
        self.enter = nn.ModuleDict({kind: nn.Linear(size, width) for kind, size in features.items()})
        self.layers = nn.ModuleList(make(model, width, config.heads, metadata) for _ in range(config.depth))
        self.leave = nn.Linear(width, classes)

    def forward(self, x: dict[str, Tensor], edge_index: dict[Relation, Tensor]) -> Tensor:
        nodes = {kind: self.enter[kind](self.dropped(rows)).relu() for kind, rows in x.items()}
        for layer in self.layers:
            heard = layer({kind: self.dropped(rows) for kind, rows in nodes.items()}, edge_index)
            nodes = {kind: rows + elu(heard[kind]) if self.residual else heard[kind] for kind, rows in nodes.items()}
        return self.leave(self.dropped(nodes[self.target]))

    def dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


def ours(model: Model, width: int, heads: int, metadata: Metadata) -> HeteroAttention:
    """HGT, RGAT (attention within each relation) and HAN as configurations of one layer."""
    if model == "hgt":
        scales = {relation: HeadScale(heads) for relation in metadata[1]}
        return HeteroAttention(width, width, metadata, heads, priors=scales, activation=nn.GELU(), residual="gated")
    scores = {relation: gat_score(heads, width // heads) for relation in metadata[1]}
    combine = SemanticAttention(width) if model == "han" else None
    return HeteroAttention(width, width, metadata, heads, softmax="relation", score=scores, combine=combine)


def theirs(model: Model, width: int, heads: int, metadata: Metadata) -> nn.Module:
    """Their layers of the same papers."""
    from torch_geometric.nn import GATConv, HANConv, HeteroConv, HGTConv

    if model == "hgt":
        return HGTConv(width, width, metadata, heads)
    if model == "han":
        return HANConv(width, width, metadata, heads)
    sizes = (width, width), width // heads, heads
    return HeteroConv({relation: GATConv(*sizes, add_self_loops=False) for relation in metadata[1]}, aggr="sum")


def gat_score(heads: int, channels: int) -> GAT:
    ends = [nn.Parameter(torch.empty(heads, channels)) for _ in range(2)]
    for vectors in ends:
        glorot(vectors)
    return GAT(*ends)


class SemanticAttention(nn.Module):
    """One weight a relation, from what its nodes heard on average: Wang et al., 2019, arXiv 1903.07293, Eq. 7 to 9."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels, channels)
        self.query = nn.Parameter(torch.empty(channels, 1))
        glorot(self.query)

    def forward(self, heard: Tensor) -> Tensor:
        """``[R, N, C]`` to ``[N, C]``."""
        heard = heard.relu()
        weights = (self.project(heard).tanh().mean(1) @ self.query).softmax(0)
        return (weights[..., None] * heard).sum(0)
