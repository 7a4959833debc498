"""Many small graphs, stored end to end and packed into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphs.checks import check_numbers, checked_edges
from graphs.ranges import ranges
from graphs.splits import Split, check_splits
from unified_attn import Graph


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
        """The edges as a mask."""
        return Graph(self.edge_index, num_keys=len(self.x))

    def __repr__(self) -> str:
        return f"GraphBatch({len(self.y)} graphs, {len(self.x)} nodes, {self.edge_index.shape[1]} edges)"


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Many graphs, each with one target, stored end to end.

    Args:
        name: Of the data set.
        x: Node features ``[N, F]`` float32, or one code a node, ``[N]`` int64.
        edge_index: ``[2, E]`` integers, kept as int64, node numbers that begin at 0 in each graph.
        node_ptr: Nodes of graph g are ``node_ptr[g]:node_ptr[g + 1]``; ``[G + 1]``.
        edge_ptr: The same for edges.
        y: Class (int64) or value (float32) of each graph, ``[G]``.
        edge_type: ``[E]`` int64, or None where edges are all alike.
        splits: Numbers of graphs.
        num_classes: None where ``y`` is a value.

    Raises:
        ValueError: If sizes do not fit, an edge leaves its graph, or a split numbers a graph that is not there.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_index", checked_edges(self.edge_index, len(self.x)))
        check_splits(self.splits, len(self))
        for name, ptr, total in (
            ("node_ptr", self.node_ptr, len(self.x)),
            ("edge_ptr", self.edge_ptr, self.edge_index.shape[1]),
        ):
            fits = len(ptr) == len(self) + 1 and int(ptr[0]) == 0 and int(ptr[-1]) == total
            if not fits or bool((ptr.diff() < 0).any()):
                raise ValueError(f"{name} must rise from 0 to {total} in {len(self)} steps, one a graph")
        if self.edge_type is not None and len(self.edge_type) != self.edge_index.shape[1]:
            raise ValueError(f"edge_type has {len(self.edge_type)} rows; there are {self.edge_index.shape[1]} edges")
        outside = (self.edge_index >= self.node_ptr.diff().repeat_interleave(self.edge_ptr.diff())).any(0).nonzero()
        if len(outside):
            edge = int(outside[0])
            raise ValueError(f"edge {edge} is {self.edge_index[:, edge].tolist()}; its graph has fewer nodes")

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, graphs: Tensor | Sequence[int]) -> GraphBatch:
        """Graphs of these numbers, in this order, packed into one.

        For training: ``DataLoader(split.train.tolist(), batch_size=..., shuffle=True, collate_fn=data.batch)``.

        Raises:
            ValueError: If there is no graph of some number.
        """
        chosen = torch.as_tensor(graphs, dtype=None if len(graphs) else torch.int64)
        check_numbers("graphs", chosen, len(self))
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
