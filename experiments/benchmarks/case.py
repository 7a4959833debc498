"""What a benchmark compares: one computation by the library and by a peer, on inputs that are made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Side:
    """One of those who compute it.

    Args:
        function: Takes the case's inputs.
        weights: What else it is differentiated by, in the same order on every side.
    """

    function: Function
    weights: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Case:
    """One computation.

    Args:
        name: Row of the table.
        peer: What ours is compared with.
        inputs: Tensors that all sides take and are differentiated by.
        ours: The library.
        theirs: The peer.
        exact: What both must equal, in float64.
        floor: One pass of gathering, timed along: ours is told in such passes.
        trains: Whether the peer has gradients; without, the forward pass alone is compared.
    """

    name: str
    peer: str
    inputs: tuple[Tensor, ...]
    ours: Side
    theirs: Side
    exact: Side
    floor: Callable[[], object] | None = None
    trains: bool = True


@dataclass(frozen=True)
class Size:
    """Nodes, edges, heads and channels of a graph case."""

    nodes: int
    edges: int
    heads: int
    channels: int

    def __str__(self) -> str:
        return f"N={self.nodes:,} E={self.edges:,} H={self.heads} C={self.channels}"
