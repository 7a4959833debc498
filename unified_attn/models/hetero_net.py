"""Networks over typed nodes and relations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn
from torch.nn.functional import gelu

from unified_attn.masks import Mask
from unified_attn.nn import HeteroAttention, RelationPrior
from unified_attn.nn.linear import Linear
from unified_attn.nn.relations import Metadata, by_relation, check_mapping, read_metadata, table_key
from unified_attn.nn.typed import Relation
from unified_attn.pairs import check_count, check_number


@dataclass(frozen=True, kw_only=True)
class HeteroNetConfig:
    """A network over typed nodes; with the values that are set here, HGT without its priors.

    Args:
        in_channels: Size of a node's features, or one for each node type; -1: that of the first input.
        out_channels: Size of an output row.
        metadata: Node types and relations, as ``HeteroData.metadata()`` gives them.
        target: The node type that the network is asked about.
        channels: Size of a node inside.
        num_layers: Number of layers.
        num_heads: A divisor of ``channels``.
        softmax: ``"node"``: one over all incoming edges of a node; ``"relation"``: one for each relation.
        prior: Makes the prior of a relation, anew for each layer: ``lambda relation: HeadScale(num_heads)`` is HGT's.
            Default none.
        dropout: Probability to drop an attention weight in training.

    Raises:
        TypeError: If a value is of the wrong kind.
        ValueError: If one is out of range, or ``target`` is no node type.
    """

    in_channels: int | Mapping[str, int] = -1
    out_channels: int
    metadata: Metadata
    target: str
    channels: int = 64
    num_layers: int = 2
    num_heads: int = 4
    softmax: Literal["node", "relation"] = "node"
    prior: Callable[[Relation], RelationPrior | float] | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        types, _ = read_metadata(self.metadata)
        if self.target not in types:
            raise ValueError(f"target is {self.target!r}, which is none of the node types {types}")
        if isinstance(self.in_channels, Mapping) and set(self.in_channels) != set(types):
            raise ValueError(f"in_channels has the node types {list(self.in_channels)}; metadata has {types}")
        for name in ("out_channels", "channels", "num_layers", "num_heads"):
            check_count(name, getattr(self, name), "give an integer")
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.channels % self.num_heads:
            raise ValueError(f"channels = {self.channels} is no multiple of num_heads = {self.num_heads}")
        if self.softmax not in ("node", "relation"):
            raise ValueError(f"softmax is {self.softmax!r}; give 'node' or 'relation'")
        if self.prior is not None and not callable(self.prior):
            raise TypeError(f"prior is {self.prior!r}; give a function that makes a relation's prior")
        check_number("dropout", self.dropout, "give a probability in [0, 1]")
        if not 0.0 <= self.dropout <= 1.0:
            raise ValueError(f"dropout is {self.dropout}; it is a probability in [0, 1]")


class HeteroNet(nn.Module):
    """Features of typed nodes to a row for each node of one type.

        h_i = gelu(W_t x_i), then layers  h_i <- a W_t^O gelu(heard_i) + (1 - a) h_i, then a linear head

    A layer holds the relations from which something still comes to the target type: what it says there is all that
    counts, so every weight has a gradient.

    Args:
        config: What it reads, and its sizes.

    Raises:
        TypeError: If the configuration is none.

    Reference: Hu et al., Heterogeneous Graph Transformer, WWW 2020, arXiv 2003.01332.

    Example:
        >>> import torch
        >>> from unified_attn.nn import HeadScale
        >>> metadata = ["author", "paper"], [("author", "writes", "paper"), ("paper", "is by", "author")]
        >>> hgt = HeteroNetConfig(out_channels=3, metadata=metadata, target="author", prior=lambda r: HeadScale(4))
        >>> x = {"author": torch.randn(2, 5), "paper": torch.randn(3, 7)}
        >>> HeteroNet(hgt)(x, {("paper", "is by", "author"): torch.tensor([[0, 1, 2], [0, 0, 1]])}).shape
        torch.Size([2, 3])
    """

    def __init__(self, config: HeteroNetConfig) -> None:
        super().__init__()
        if not isinstance(config, HeteroNetConfig):
            raise TypeError(f"config is a {type(config).__name__}; give a HeteroNetConfig")
        self.config = config
        self.node_types, self.relations = read_metadata(config.metadata)
        reach = _reach(self.relations, config.target, config.num_layers)
        self.layers = nn.ModuleList(_layer(config, *metadata) for metadata in reach)
        sizes = config.in_channels
        self.encoders = nn.ModuleDict(
            {
                table_key(t): Linear(sizes[t] if isinstance(sizes, Mapping) else sizes, config.channels)
                for t in reach[0][0]
            }
        )
        self.head = nn.Linear(config.channels, config.out_channels)

    def forward(
        self,
        x_dict: Mapping[str, Tensor],
        edge_index_dict: Mapping[Relation, Tensor | Mask],
        edge_attr_dict: Mapping[Relation, Tensor] | None = None,
    ) -> Tensor:
        """``[N, out_channels]``: a row for each node of the target type.

        Args:
            x_dict: Of each node type ``[N, C]``.
            edge_index_dict: Of each relation its edges, as for :class:`~unified_attn.nn.HeteroAttention`.
            edge_attr_dict: ``[E, F]`` of the relations whose prior reads features.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If a type or relation is unknown, a type missing, or a size wrong; by name.
        """
        check_mapping("x_dict", x_dict)
        unknown = [t for t in x_dict if t not in self.node_types]
        missing = [t for t in self.node_types if t not in x_dict]
        if unknown or missing:
            raise ValueError(f"x_dict lacks {missing} and has unknown {unknown}; node types are {self.node_types}")
        edges = by_relation("edge_index_dict", edge_index_dict, self.relations)
        features = by_relation("edge_attr_dict", edge_attr_dict or {}, self.relations)
        layers = cast(list[HeteroAttention], self.layers)
        h = {t: gelu(self.encoders[table_key(t)](x_dict[t])) for t in layers[0].node_types}
        for layer in layers:
            near = {t: h[t] for t in layer.node_types}
            h = layer(near, *({r: given[r] for r in layer.relations if r in given} for given in (edges, features)))
        out: Tensor = self.head(h[self.config.target])
        return out


def _reach(relations: list[Relation], target: str, num_layers: int) -> list[tuple[list[str], list[Relation]]]:
    """Of each layer the node types and relations from which something still comes to the target type."""
    types, found = [target], []
    for _ in range(num_layers):
        into = [r for r in relations if r[2] in types]
        types = types + [t for t in dict.fromkeys(r[0] for r in into) if t not in types]
        found.append((types, into))
    return found[::-1]


def _layer(config: HeteroNetConfig, types: list[str], relations: list[Relation]) -> HeteroAttention:
    make = config.prior
    return HeteroAttention(
        config.channels,
        config.channels,
        (types, relations),
        config.num_heads,
        config.softmax,
        priors=None if make is None else {r: make(r) for r in relations},
        activation=nn.GELU(),
        residual="gated",
        dropout=config.dropout,
    )
