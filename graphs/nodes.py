"""One graph whose nodes have classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphs.checks import checked_edges
from graphs.splits import Split, check_splits
from unified_attn import Graph


@dataclass(frozen=True, eq=False)
class NodeData:
    """A graph, its nodes' features and classes, and who is trained on.

    Args:
        name: Of the data set.
        x: Node features, ``[N, F]`` float32.
        y: Class of each node, ``[N]`` int64.
        edge_index: ``[2, E]`` integers, kept as int64, sources then targets.
        splits: One, or one a run.
        num_classes: C.

    Raises:
        ValueError: If sizes do not fit, or an index or a number in a split is out of range.
    """

    name: str
    x: Tensor
    y: Tensor
    edge_index: Tensor
    splits: list[Split]
    num_classes: int

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} rows and y has {len(self.y)}; both have one a node")
        object.__setattr__(self, "edge_index", checked_edges(self.edge_index, len(self.x)))
        check_splits(self.splits, len(self.x))

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.x)

    def graph(self) -> Graph:
        """The edges as a mask."""
        return Graph(self.edge_index, num_keys=self.num_nodes)

    def __repr__(self) -> str:
        return (
            f"{self.name}: {self.num_nodes} nodes, {self.edge_index.shape[1]} edges, {self.x.shape[1]} features, "
            f"{self.num_classes} classes, {len(self.splits)} splits"
        )
