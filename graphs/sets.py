"""What a data set is once read: one graph, many small ones, or nodes and edges of several types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphs.ranges import ranges
from graphs.splits import Split
from unified_attn import Graph

Relation = tuple[str, str, str]  # type of the sources, name of the relation, type of the targets


@dataclass(frozen=True, eq=False)
class NodeData:
    """One graph whose nodes have classes.

    Args:
        name: Of the data set.
        x: Node features, ``[N, F]`` float32.
        y: Class of each node, ``[N]`` int64.
        edge_index: ``[2, E]`` int64, sources then targets.
        splits: One, or one a run.
        num_classes: C.
    """

    name: str
    x: Tensor
    y: Tensor
    edge_index: Tensor
    splits: list[Split]
    num_classes: int

    @property
    def num_nodes(self) -> int:
        return len(self.x)

    def graph(self) -> Graph:
        return Graph(self.edge_index, num_keys=self.num_nodes)

    def __repr__(self) -> str:
        return (
            f"{self.name}: {self.num_nodes} nodes, {self.edge_index.shape[1]} edges, {self.x.shape[1]} features, "
            f"{self.num_classes} classes, splits {len(self.splits)} x {self.splits[0]}"
        )


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Some graphs side by side as one graph without edges between them.

    Args:
        x: ``[N, F]`` floats, or ``[N]`` integer codes.
        edge_index: ``[2, E]``, numbers of the packed nodes.
        edge_type: ``[E]`` int64 or None.
        batch: Graph of each node, ``[N]``, ascending: what ``Documents`` takes.
        y: Target of each graph, ``[G]``.
    """

    x: Tensor
    edge_index: Tensor
    edge_type: Tensor | None
    batch: Tensor
    y: Tensor

    def graph(self) -> Graph:
        return Graph(self.edge_index, num_keys=len(self.x))


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Many graphs, each with one target, stored end to end.

    Args:
        name: Of the data set.
        x: Node features ``[N, F]`` float32, or one code a node, ``[N]`` int64.
        edge_index: ``[2, E]`` int64, node numbers that begin at 0 in each graph.
        node_ptr: Nodes of graph g are ``node_ptr[g]:node_ptr[g + 1]``; ``[G + 1]``.
        edge_ptr: The same for edges.
        y: Class (int64) or value (float32) of each graph, ``[G]``.
        edge_type: ``[E]`` int64, or None where edges are all alike.
        splits: Numbers of graphs.
        num_classes: None where ``y`` is a value.
    """

    name: str
    x: Tensor
    edge_index: Tensor
    node_ptr: Tensor
    edge_ptr: Tensor
    y: Tensor
    edge_type: Tensor | None = None
    splits: list[Split] = field(default_factory=list)
    num_classes: int | None = None

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, graphs: Tensor | Sequence[int]) -> GraphBatch:
        """Graphs of these numbers, in this order, packed into one.

        Raises:
            ValueError: If there is no graph of some number.
        """
        chosen = torch.as_tensor(graphs, dtype=torch.int64)
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self):
            raise ValueError(f"graphs run from {int(chosen.min())} to {int(chosen.max())}; {self.name} has {len(self)}")
        nodes, edges = self.node_ptr.diff()[chosen], self.edge_ptr.diff()[chosen]
        node, edge = ranges(self.node_ptr[chosen], nodes), ranges(self.edge_ptr[chosen], edges)
        shift = (nodes.cumsum(0) - nodes).repeat_interleave(edges)
        return GraphBatch(
            x=self.x[node],
            edge_index=self.edge_index[:, edge] + shift,
            edge_type=None if self.edge_type is None else self.edge_type[edge],
            batch=torch.arange(len(chosen)).repeat_interleave(nodes),
            y=self.y[chosen],
        )

    def __repr__(self) -> str:
        return f"{self.name}: {len(self)} graphs, {len(self.x)} nodes, {self.edge_index.shape[1]} edges"


@dataclass(frozen=True, eq=False)
class HeteroNodes:
    """Nodes and edges of several types; nodes of one type have classes.

    Args:
        name: Of the data set.
        x: Node features by type, ``[N_type, F_type]`` float32.
        edge_index: ``[2, E]`` by relation (type of the sources, name, type of the targets), numbers within each type.
        y: Class of each node of the type ``target``, int64.
        target: That type.
        splits: Numbers of nodes of that type.
        num_classes: C.
    """

    name: str
    x: dict[str, Tensor]
    edge_index: dict[Relation, Tensor]
    y: Tensor
    target: str
    splits: list[Split]
    num_classes: int

    def metadata(self) -> tuple[list[str], list[Relation]]:
        """Node types and relations, as hetero layers take them."""
        return list(self.x), list(self.edge_index)

    def __repr__(self) -> str:
        nodes = ", ".join(f"{len(x)} {kind}" for kind, x in self.x.items())
        edges = sum(ends.shape[1] for ends in self.edge_index.values())
        return f"{self.name}: {nodes}; {edges} edges of {len(self.edge_index)} relations"
