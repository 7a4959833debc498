"""Priors of global attention in a graph network: paths, edges and the virtual node, summed into one bias."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unified_attn.biases import Bias, EdgeBias, EdgeFeatures, EdgeTypes, PathFeatures, ShortestPath
from unified_attn.biases.base import widened
from unified_attn.models.graph_net_config import GraphNetConfig
from unified_attn.pairs import Pairs, Shape, check_device, describe, hold


class GraphPriors(nn.Module):
    """What a pair of nodes is worth before any content is seen; shared by all blocks. All of it starts at 0.

        b_ij = path length of (i, j) + features along the path + features or type of the edge j -> i
        b_ij = t                                    where i or j is the virtual node: a number of its own a head

    Args:
        config: Which of these there are.

    Reference: Ying et al., 2021, arXiv 2106.05234, Eq. 6 and 7, and section 3.2 on the virtual node.
    """

    def __init__(self, config: GraphNetConfig) -> None:
        super().__init__()
        heads, c = config.num_heads, config
        self.distance = ShortestPath(c.max_distance, heads) if c.max_distance else None
        width = c.channels if c.num_edge_types else c.edge_dim  # types have embeddings
        self.paths = PathFeatures(width, c.max_path_length, heads) if c.max_path_length else None
        self.edges = EdgeFeatures(c.edge_dim, heads) if c.edge_dim else None
        self.edge_types = EdgeTypes(c.num_edge_types, heads) if c.num_edge_types else None
        self.virtual = nn.Parameter(torch.zeros(heads)) if c.virtual_node else None

    def forward(
        self,
        num_nodes: int,
        sizes: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        edge_types: Tensor | None,
        edge_vectors: Tensor | None,
        distance: Tensor | None,
        paths: Tensor | None,
    ) -> Bias | None:
        """The bias of one call; None if there is none.

        Args:
            num_nodes: N, without virtual nodes, which come last.
            sizes: ``[G]``.
            edge_index: ``[2, E]``.
            edge_attr: ``[E, edge_dim]`` or None.
            edge_types: ``[E]`` or None.
            edge_vectors: ``[E, F]``: the features, or embeddings of the types; or None.
            distance: ``[N, N]``, or blocks ``[sum of n * n]``; or None.
            paths: ``[N, N, L]``, or blocks ``[sum of n * n, L]``; or None.
        """
        terms: list[Bias] = []
        if self.distance is not None and distance is not None:
            lengths, own = (distance, sizes) if distance.dim() == 1 else _one_block(distance, 2)
            terms.append(FirstRows(self.distance(lengths, own), num_nodes))
        if self.paths is not None and paths is not None and edge_vectors is not None:
            edges, own = (paths, sizes) if paths.dim() == 2 else _one_block(paths, 3)
            terms.append(FirstRows(self.paths(edge_vectors, edges, own), num_nodes))
        if self.edges is not None and edge_attr is not None:
            terms.append(EdgeBias(self.edges(edge_attr).values, edge_index=edge_index))
        if self.edge_types is not None and edge_types is not None:
            terms.append(EdgeBias(self.edge_types(edge_types).values, edge_index=edge_index))
        if self.virtual is not None:
            terms.append(VirtualBias(self.virtual, num_nodes))
        total: Bias | None = None
        for term in terms:
            total = term if total is None else total + term
        return total


def _one_block(table: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """A table ``[N, N, ...]`` as a block like those of packed graphs, and its size ``[1]``."""
    if table.dim() != dims or table.shape[0] != table.shape[1]:
        form = "distance must be [N, N], or" if dims == 2 else "paths must be [N, N, L], or"
        raise ValueError(f"{form} flattened blocks with a row a pair; got {describe(table)}")
    return table.flatten(0, 1), torch.full((1,), table.shape[0], device=table.device)


class FirstRows(Bias):
    """A bias of the first nodes, which knows nothing of those that follow: their pairs get 0.

    Args:
        bias: Of N queries and keys.
        num_nodes: N.
    """

    space = "row"

    def __init__(self, bias: Bias, num_nodes: int) -> None:
        super().__init__()
        self.bias = bias
        self.num_nodes = num_nodes

    def on(self, pairs: Pairs) -> Tensor | None:
        n = self.num_nodes
        if n == 0:
            return None
        if n == pairs.shape.num_queries == pairs.shape.num_keys:
            return self.bias.on(pairs)
        inside = Inside(self._inside(pairs.shape), pairs.q_positions, pairs.k_positions, whole=pairs)
        values = self.bias.on(inside)
        return None if values is None else values.masked_fill((pairs.query >= n) | (pairs.key >= n), 0.0)

    def check(self, shape: Shape) -> None:
        if self.num_nodes > min(shape.num_queries, shape.num_keys):
            raise ValueError(f"the bias is for {self.num_nodes} nodes, but q has {shape.num_queries} rows")
        self.bias.check(self._inside(shape))

    def _inside(self, shape: Shape) -> Shape:
        return replace(shape, num_queries=self.num_nodes, num_keys=self.num_nodes)

    def __repr__(self) -> str:
        return f"{self.bias!r} on {self.num_nodes} nodes"


@dataclass(frozen=True, eq=False, kw_only=True)
class Inside(Pairs):
    """Pairs of fewer nodes than there are: a node beyond them counts as the last of them.

    Args:
        whole: The pairs as they are.
    """

    whole: Pairs

    @property
    def is_dense(self) -> bool:
        return False

    @property
    def batch(self) -> Tensor:
        return self.whole.batch

    @property
    def head(self) -> Tensor:
        return self.whole.head

    @property
    def query(self) -> Tensor:
        return self.whole.query.clamp(max=self.shape.num_queries - 1)

    @property
    def key(self) -> Tensor:
        return self.whole.key.clamp(max=self.shape.num_keys - 1)


class VirtualBias(Bias):
    """A number a head for all pairs with a virtual node.

    Args:
        weight: ``[H]``.
        num_nodes: Nodes from this number on are virtual.
    """

    weight: Tensor
    space = "row"

    def __init__(self, weight: Tensor, num_nodes: int) -> None:
        super().__init__()
        hold(self, "weight", weight)
        self.num_nodes = num_nodes

    def on(self, pairs: Pairs) -> Tensor:
        virtual = (pairs.query >= self.num_nodes) | (pairs.key >= self.num_nodes)
        return torch.where(virtual, widened(self.weight)[pairs.head], 0.0)

    def check(self, shape: Shape) -> None:
        check_device("the virtual node's weight", self.weight, shape)
        if self.weight.shape != (shape.num_heads,):
            raise ValueError(f"the virtual node's weight is {describe(self.weight)}; q has {shape.num_heads} heads")

    def __repr__(self) -> str:
        return f"VirtualBias(nodes from {self.num_nodes})"
