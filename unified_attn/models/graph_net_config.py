"""What a graph network is, as a row of values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from unified_attn.pairs import check_count, check_number


@dataclass(frozen=True, kw_only=True)
class GraphNetConfig:
    """A graph network: what it reads, who listens to whom in a block, which priors it has, and what it gives.

    Numbers that say what is read (the first group) and which priors there are (the third) are 0 where there is none.

    Args:
        in_channels: F of node features ``[N, F]``.
        num_node_types: Number of codes, where nodes have a code ``[N]`` instead of features.
        edge_dim: F of edge features ``[E, F]``.
        num_edge_types: Number of types, where edges have a type ``[E]`` instead of features.
        laplacian_size: Number of Laplacian eigenvectors a node; in training their signs are random.
        walk_length: Number of random-walk return probabilities a node.
        local: The layer that acts along edges: ``"gat"``, ``"gatv2"``, ``"transformer"``, or None.
        global_attention: Whether every node attends all nodes of its graph.
        max_degree: In- and outdegrees get an embedding each; greater ones count as it.
        max_distance: Lengths of shortest paths get a bias each on global attention; greater ones count as it.
        max_path_length: Most edges of a path whose features are a bias on global attention.
        virtual_node: Whether each graph has a node more, which all of its nodes attend, and it them, at a bias of its
            own.
        output: ``"node"``: a row a node; ``"graph"``: a row a graph.
        pooling: What stands for a graph: ``"mean"`` or ``"sum"`` of its nodes, or its ``"virtual"`` node.
        out_channels: Size of an output row.
        channels: Size of a node inside.
        num_layers: Number of blocks.
        num_heads: A divisor of ``channels``.
        ff_channels: Inner size of each block's feed-forward part; 0: there is none.
        dropout: Probability to drop a number in training.
        attention_dropout: Probability to drop an attention weight in training.

    Raises:
        TypeError: If a value is of the wrong kind.
        ValueError: If one is out of range, or two contradict each other.

    Example:
        >>> from dataclasses import replace
        >>> replace(gat(in_channels=16, out_channels=3), num_layers=2).local
        'gat'
    """

    in_channels: int = 0
    num_node_types: int = 0
    edge_dim: int = 0
    num_edge_types: int = 0
    laplacian_size: int = 0
    walk_length: int = 0

    local: Literal["gat", "gatv2", "transformer"] | None = None
    global_attention: bool = False

    max_degree: int = 0
    max_distance: int = 0
    max_path_length: int = 0
    virtual_node: bool = False

    output: Literal["node", "graph"] = "node"
    pooling: Literal["mean", "sum", "virtual"] = "mean"
    out_channels: int
    channels: int = 64
    num_layers: int = 3
    num_heads: int = 4
    ff_channels: int = 0
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                least = 1 if field.name in ("out_channels", "channels", "num_layers", "num_heads") else 0
                check_count(field.name, value, "give an integer")
                if value < least:
                    raise ValueError(f"{field.name} is {value}; it must be at least {least}")
            elif field.type == "bool" and not isinstance(value, bool):
                raise TypeError(f"{field.name} is {value!r}; give True or False")
        for name in ("dropout", "attention_dropout"):
            check_number(name, getattr(self, name), "give a probability in [0, 1]")
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it is a probability in [0, 1]")
        choices = {
            "local": ("gat", "gatv2", "transformer", None),
            "output": ("node", "graph"),
            "pooling": ("mean", "sum", "virtual"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {known}")
        if (self.in_channels > 0) == (self.num_node_types > 0):
            raise ValueError(
                f"in_channels is {self.in_channels} and num_node_types {self.num_node_types}: give the size of the "
                f"nodes' features or the number of their codes, and 0 for the other"
            )
        if self.edge_dim and self.num_edge_types:
            raise ValueError(
                f"edge_dim is {self.edge_dim} and num_edge_types {self.num_edge_types}: edges have features or a type"
            )
        if self.local is None and not self.global_attention:
            raise ValueError("local is None and global_attention False: nobody would listen to anybody")
        if self.channels % self.num_heads:
            raise ValueError(f"channels = {self.channels} is no multiple of num_heads = {self.num_heads}")
        for name in ("max_distance", "max_path_length", "virtual_node"):
            if getattr(self, name) and not self.global_attention:
                raise ValueError(f"{name} = {getattr(self, name)} is a prior of global attention; set it to True")
        if self.max_path_length and not self.edge_dim + self.num_edge_types:
            raise ValueError(f"max_path_length = {self.max_path_length} needs edge_dim or num_edge_types")
        if self.pooling == "virtual" and not (self.virtual_node and self.output == "graph"):
            raise ValueError("pooling='virtual' needs virtual_node=True and output='graph'")


def gat(in_channels: int, out_channels: int) -> GraphNetConfig:
    """A graph attention network: Velickovic et al., ICLR 2018, arXiv 1710.10903; here with residual blocks."""
    return GraphNetConfig(in_channels=in_channels, out_channels=out_channels, local="gat", num_heads=8, num_layers=2)


def gatv2(in_channels: int, out_channels: int) -> GraphNetConfig:
    """The same with GATv2: Brody et al., ICLR 2022, arXiv 2105.14491."""
    return GraphNetConfig(in_channels=in_channels, out_channels=out_channels, local="gatv2", num_heads=8, num_layers=2)


def graphormer(num_node_types: int, num_edge_types: int, out_channels: int) -> GraphNetConfig:
    """Graphormer on molecules, of its slim size: Ying et al., NeurIPS 2021, arXiv 2106.05234."""
    return GraphNetConfig(
        num_node_types=num_node_types,
        num_edge_types=num_edge_types,
        out_channels=out_channels,
        global_attention=True,
        max_degree=64,
        max_distance=20,
        max_path_length=5,
        virtual_node=True,
        output="graph",
        pooling="virtual",
        channels=80,
        num_layers=12,
        num_heads=8,
        ff_channels=80,
        dropout=0.1,
        attention_dropout=0.1,
    )


def gps(num_node_types: int, num_edge_types: int, out_channels: int) -> GraphNetConfig:
    """A GPS network on molecules, with attention along edges: Rampasek et al., NeurIPS 2022, arXiv 2205.12454."""
    return GraphNetConfig(
        num_node_types=num_node_types,
        num_edge_types=num_edge_types,
        out_channels=out_channels,
        walk_length=20,
        local="transformer",
        global_attention=True,
        output="graph",
        pooling="sum",
        channels=64,
        num_layers=10,
        num_heads=4,
        ff_channels=128,
        attention_dropout=0.5,
    )
