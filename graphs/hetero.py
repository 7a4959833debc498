"""Nodes and edges of several types."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphs.checks import checked_edges
from graphs.splits import Split, check_splits

Relation = tuple[str, str, str]  # type of the sources, name of the relation, type of the targets


@dataclass(frozen=True, eq=False)
class HeteroNodes:
    """A graph of several node types, of which one has classes.

    Args:
        name: Of the data set.
        x: Node features by type, ``[N_type, F_type]`` float32.
        edge_index: ``[2, E]`` integers, kept as int64, by relation (type of the sources, name, type of the targets),
            numbers within each type.
        y: Class of each node of the type ``target``, int64.
        target: That type.
        splits: Numbers of nodes of that type.
        num_classes: C.

    Raises:
        ValueError: If a type is unknown, sizes do not fit, or an index or a number in a split is out of range.
    """

    name: str
    x: dict[str, Tensor]
    edge_index: dict[Relation, Tensor]
    y: Tensor
    target: str
    splits: list[Split]
    num_classes: int

    def __post_init__(self) -> None:
        check_types(self.x, *(kind for source, _, target in self.edge_index for kind in (source, target)), self.target)
        edge_index = {
            relation: checked_edges(ends, len(self.x[relation[0]]), len(self.x[relation[2]]))
            for relation, ends in self.edge_index.items()
        }
        object.__setattr__(self, "edge_index", edge_index)
        if len(self.y) != len(self.x[self.target]):
            raise ValueError(f"y has {len(self.y)} rows; there are {len(self.x[self.target])} nodes of {self.target!r}")
        check_splits(self.splits, len(self.y))

    def metadata(self) -> tuple[list[str], list[Relation]]:
        """Node types and relations, as hetero layers take them."""
        return list(self.x), list(self.edge_index)

    def __repr__(self) -> str:
        nodes = ", ".join(f"{len(x)} {kind}" for kind, x in self.x.items())
        edges = sum(ends.shape[1] for ends in self.edge_index.values())
        return f"{self.name}: {nodes}; {edges} edges of {len(self.edge_index)} relations"


def check_types(known: dict[str, Tensor] | dict[str, int], *named: str) -> None:
    """Raises ValueError for the first name that is no node type."""
    for kind in named:
        if kind not in known:
            raise ValueError(f"there is no node type {kind!r}; types are {list(known)}")
