"""Graphs from networkx and back, with labels, attributes, direction and parallel edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphs.checks import checked_edges
from graphs.columns import Column, columns_of, rows_of
from unified_attn import Graph

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False)
class Numbered:
    """A graph of numbers, and what the numbers stood for.

    Args:
        nodes: Label of each node, in the order of ``graph.nodes``.
        edge_index: ``[2, E]`` integers, kept as int64. An undirected edge is two entries, a loop one.
        node_attributes: By name, one row a node: a tensor where all values are numbers, or arrays or lists of
            numbers of one shape; else a list.
        edge_attributes: By name, one row an entry of ``edge_index``.
        directed: Whether it was, and will be, a directed graph.
        keys: Key of each entry in a multigraph, the same for both directions; None for a graph without parallel edges.
        attributes: Of the graph itself.

    Raises:
        ValueError: If a label is there twice, an index is out of range, or an attribute has the wrong number of rows.
    """

    nodes: list[Hashable]
    edge_index: Tensor
    node_attributes: dict[str, Column] = field(default_factory=dict)
    edge_attributes: dict[str, Column] = field(default_factory=dict)
    directed: bool = True
    keys: list[Hashable] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_index", checked_edges(self.edge_index, len(self.nodes)))
        if twice := [label for label, count in Counter(self.nodes).items() if count > 1]:
            raise ValueError(f"nodes holds {twice[0]!r} twice")
        edges = self.edge_index.shape[1]
        sizes = [(f"node attribute {name!r}", len(c), len(self.nodes)) for name, c in self.node_attributes.items()]
        sizes += [(f"edge attribute {name!r}", len(c), edges) for name, c in self.edge_attributes.items()]
        sizes += [("keys", len(self.keys), edges)] if self.keys is not None else []
        for name, got, right in sizes:
            if got != right:
                raise ValueError(f"{name} has {got} entries; it must have {right}")

    @property
    def numbers(self) -> dict[Hashable, int]:
        """Number of each label."""
        return {label: number for number, label in enumerate(self.nodes)}

    def graph(self) -> Graph:
        """The edges as a mask."""
        return Graph(self.edge_index, num_keys=len(self.nodes))

    def to_networkx(self) -> networkx.Graph:
        """A networkx graph of the kind it came from, with everything that this object holds.

        Numbers come back as Python's (floats, where some are), arrays as lists.

        Raises:
            ValueError: If there are parallel entries without ``keys``, or if the graph is undirected and an edge lacks
                its other direction, or has other attributes there; each names the edge.
        """
        import networkx

        kinds = {
            (False, False): networkx.Graph,
            (False, True): networkx.MultiGraph,
            (True, False): networkx.DiGraph,
            (True, True): networkx.MultiDiGraph,
        }
        graph = kinds[self.directed, self.keys is not None]()
        graph.graph.update(self.attributes)
        rows = rows_of(self.node_attributes, len(self.nodes))
        graph.add_nodes_from(zip(self.nodes, rows, strict=True))
        keys = [()] * self.edge_index.shape[1] if self.keys is None else [(key,) for key in self.keys]
        seen: dict[tuple[Hashable, ...], dict[str, Any]] = {}
        rows = rows_of(self.edge_attributes, self.edge_index.shape[1])
        for (j, i), key, row in zip(self.edge_index.t().tolist(), keys, rows, strict=True):
            edge = (self.nodes[j], self.nodes[i], *key)
            if edge in seen:
                raise ValueError(f"edge {edge} is there more than once; give each its key")
            seen[edge] = row
        for edge, row in seen.items():
            back = (edge[1], edge[0], *edge[2:])
            if not self.directed and repr(seen.get(back)) != repr(row):  # by text: NaN differs from itself
                raise ValueError(f"the graph is undirected, but edge {edge} has {row} and {back} has {seen.get(back)}")
            if self.directed or not graph.has_edge(*back):
                graph.add_edge(*edge)
                graph.edges[edge].update(row)
        return graph


def from_networkx(
    graph: networkx.Graph,
    *,
    node_attributes: Sequence[str] | None = None,
    edge_attributes: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Numbered:
    """Numbers the nodes in the order of ``graph.nodes`` and lists the edges, with all attributes that are asked for.

    Python's floats become float64 and its integers int64, so that nothing is lost: ``.float()`` makes features of them.

    Args:
        graph: Of any of networkx's four kinds. An undirected edge becomes two entries, one after the other, with the
            same attributes; a loop one entry.
        node_attributes: Names to take; default all that occur.
        edge_attributes: The same for edges.
        defaults: Value by name for nodes and edges that lack it.

    Raises:
        TypeError: If ``graph`` is none of networkx's.
        ValueError: If a node or an edge, which the message names, lacks an attribute that has no default; or if a
            default is for an attribute that does not occur.

    Example:
        >>> import networkx
        >>> graph = networkx.Graph()
        >>> graph.add_node("b", x=1)
        >>> graph.add_node("a", x=2)
        >>> graph.add_edge("a", "b")
        >>> numbered = from_networkx(graph)
        >>> numbered.nodes, numbered.node_attributes["x"], numbered.edge_index.tolist()
        (['b', 'a'], tensor([1, 2]), [[0, 1], [1, 0]])
    """
    import networkx

    if not isinstance(graph, networkx.Graph):
        raise TypeError(f"graph is of type {type(graph).__name__}; give a graph of networkx")
    nodes = dict(graph.nodes(data=True))
    number = {label: i for i, label in enumerate(nodes)}
    kept = {"keys": True} if graph.is_multigraph() else {}
    ends, keys, rows, names = [], [], [], []
    for u, v, *key, row in graph.edges(data=True, **kept):
        both = not graph.is_directed() and u != v
        for source, target in [(u, v), (v, u)] if both else [(u, v)]:
            ends.append((number[source], number[target]))
            keys.extend(key)
            rows.append(row)
            names.append(f"edge {(u, v, *key)}")
    defaults = defaults or {}
    node_columns = columns_of(node_attributes, nodes.values(), [f"node {label!r}" for label in nodes], defaults)
    edge_columns = columns_of(edge_attributes, rows, names, defaults)
    if unused := defaults.keys() - node_columns.keys() - edge_columns.keys():
        raise ValueError(f"defaults holds {min(unused)!r}, which no node or edge has; name it in an argument to add it")
    return Numbered(
        nodes=list(nodes),
        edge_index=torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).t().contiguous(),
        node_attributes=node_columns,
        edge_attributes=edge_columns,
        directed=graph.is_directed(),
        keys=keys if graph.is_multigraph() else None,
        attributes=dict(graph.graph),
    )
