"""Graphs from networkx and back, with labels, attributes, direction and parallel edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphs.checks import check_edges
from unified_attn import Graph

if TYPE_CHECKING:
    import networkx

Column = Tensor | list[Any]


@dataclass(frozen=True, eq=False)
class Numbered:
    """A graph of numbers, and what the numbers stood for.

    Args:
        nodes: Label of each node, in the order of ``graph.nodes``.
        edge_index: ``[2, E]`` int64. An undirected edge is two entries, a loop one.
        node_attributes: By name, one row a node: a tensor where all values are numbers, or arrays or lists of
            numbers of one shape; else a list.
        edge_attributes: By name, one row an entry of ``edge_index``.
        directed: Whether it was, and will be, a directed graph.
        keys: Key of each entry in a multigraph, the same for both directions; None for a graph without parallel edges.
        attributes: Of the graph itself.
    """

    nodes: list[Hashable]
    edge_index: Tensor
    node_attributes: dict[str, Column] = field(default_factory=dict)
    edge_attributes: dict[str, Column] = field(default_factory=dict)
    directed: bool = True
    keys: list[Hashable] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[Hashable, int]:
        """Number of each label."""
        return {label: number for number, label in enumerate(self.nodes)}

    def graph(self) -> Graph:
        return Graph(self.edge_index, num_keys=len(self.nodes))

    def to_networkx(self) -> networkx.Graph:
        """A networkx graph of the kind it came from, with everything that this object holds.

        Numbers come back as Python's, arrays as lists.

        Raises:
            ValueError: If there are parallel entries without ``keys``, or if the graph is undirected and an edge lacks
                its other direction, or has other attributes there; each names the edge.
        """
        import networkx

        check_edges(self.edge_index, len(self.nodes))
        kinds = {
            (False, False): networkx.Graph,
            (False, True): networkx.MultiGraph,
            (True, False): networkx.DiGraph,
            (True, True): networkx.MultiDiGraph,
        }
        graph = kinds[self.directed, self.keys is not None]()
        graph.graph.update(self.attributes)
        rows = _rows(self.node_attributes, len(self.nodes), "node")
        graph.add_nodes_from(zip(self.nodes, rows, strict=True))
        seen: dict[tuple[Hashable, ...], dict[str, Any]] = {}
        rows = _rows(self.edge_attributes, self.edge_index.shape[1], "edge")
        for (j, i), key, row in zip(self.edge_index.t().tolist(), self._keys(), rows, strict=True):
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

    def _keys(self) -> list[tuple[Hashable, ...]]:
        return [()] * self.edge_index.shape[1] if self.keys is None else [(key,) for key in self.keys]


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
        ValueError: If a node or an edge, which the message names, lacks an attribute that has no default.

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
    return Numbered(
        nodes=list(nodes),
        edge_index=torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).t().contiguous(),
        node_attributes=_columns(node_attributes, nodes.values(), [f"node {n!r}" for n in nodes], defaults or {}),
        edge_attributes=_columns(edge_attributes, rows, names, defaults or {}),
        directed=graph.is_directed(),
        keys=keys if graph.is_multigraph() else None,
        attributes=dict(graph.graph),
    )


def _columns(
    wanted: Sequence[str] | None, rows: Iterable[dict[str, Any]], names: list[str], defaults: Mapping[str, Any]
) -> dict[str, Column]:
    rows = list(rows)
    columns: dict[str, list[Any]] = defaultdict(list)
    for attribute in dict.fromkeys(name for row in rows for name in row) if wanted is None else wanted:
        for row, name in zip(rows, names, strict=True):
            if attribute not in row and attribute not in defaults:
                raise ValueError(f"{name} has no attribute {attribute!r}; give it one, or a default in `defaults`")
            columns[attribute].append(row[attribute] if attribute in row else defaults[attribute])
    return {attribute: _column(values) for attribute, values in columns.items()}


def _column(values: list[Any]) -> Column:
    """A tensor where that loses nothing: all bool, all numbers, or arrays and lists of numbers, all of one shape."""
    kinds = {type(value) for value in values}
    if kinds == {bool} or (kinds <= {int, float} and _exact(values)):
        return torch.tensor(values, dtype=torch.float64 if float in kinds else None)
    arrays = [array for value in values if (array := _array(value)) is not None]
    if arrays and len(arrays) == len(values) and len({(array.shape, array.dtype) for array in arrays}) == 1:
        return torch.stack(arrays)
    return values


def _exact(numbers: list[Any]) -> bool:
    """Whether float64 and int64 hold these numbers as they are."""
    return all(type(number) is float or abs(number) <= 2**53 for number in numbers)


def _array(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if type(value) is list and {type(entry) for entry in value} in ({int}, {float}) and _exact(value):
        return torch.tensor(value, dtype=torch.float64 if type(value[0]) is float else torch.int64)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "bif":
        return torch.from_numpy(np.array(value))
    return None


def _rows(columns: Mapping[str, Column], count: int, what: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in columns.items():
        if len(column) != count:
            raise ValueError(f"{what} attribute {name!r} has {len(column)} rows; there are {count} {what}s")
        for row, value in zip(rows, column.tolist() if isinstance(column, Tensor) else column, strict=True):
            row[name] = value
    return rows
