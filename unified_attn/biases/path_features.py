"""Features of the edges along shortest paths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unified_attn.biases.base import Bias, widened
from unified_attn.biases.edge_features import features, product
from unified_attn.biases.learned import Maker, at_batch, check_pair_codes, check_size, codes_within
from unified_attn.biases.path_blocks import PathBlockBias, flattened
from unified_attn.pairs import Shape, check_device, describe, hold


class PathFeatures(Maker):
    """Features of the edges along a shortest path, averaged: calling it on them gives the bias to pass on.

        b_ij = 1 / L * sum_{n < L} <weight[n, h], edge_attr[e_n]>

    where e_0, ..., e_{L-1} are the edges of the path between query i and key j, the one at i first, the one at j last.

    A pair without edges on its path (itself, or one that is not connected) gets 0. The weight starts at 0, so that an
    untrained bias changes nothing.

    A packed batch of graphs is given block by block, as for :class:`~unified_attn.ShortestPath`; its edges are numbered
    on from graph to graph, as the rows of ``edge_attr`` are.

    Args:
        edge_dim: F.
        max_length: Most edges of a path.
        num_heads: Hq.

    Attributes:
        weight: ``[max_length, num_heads, edge_dim]``: one vector for each place on a path, and head.

    Raises:
        TypeError: If a size is no integer, edge features are no floats or paths no integers.
        ValueError: If a size is below 1, a shape is wrong, a path longer than ``max_length``, with a gap or with
            an edge not in -1..E-1, or, in a call of the operator, if they do not fit q and k.

    Cost: O(E L Hq) for the products, which are made once an edge and place, and O(pairs Hq) a place on the path.

    Reference: Ying et al., Graphormer, NeurIPS 2021, arXiv 2106.05234, Eq. 7.

    Example:
        A path 0 - 1 - 2 of two edges with features 4 and 10, seen from node 0; the second place weighs half:

        >>> path = PathFeatures(1, max_length=2, num_heads=1)
        >>> _ = path.weight.data.copy_(torch.tensor([1.0, 0.5]).reshape(2, 1, 1))
        >>> paths = torch.tensor([[[-1, -1], [0, -1], [0, 1]]])  # to itself, to 1, to 2
        >>> bias = path(torch.tensor([[4.0], [10.0]]), paths)
        >>> zero = torch.tensor(0)
        >>> bias.add(zero, zero, zero, torch.arange(3), None).detach()  # 0, 4, (4 + 5) / 2
        tensor([0.0000, 4.0000, 4.5000])
        >>> path(torch.tensor([[4.0], [10.0]]), [torch.tensor([[[-1], [0]], [[1], [-1]]])])  # one graph, of two nodes
        PathFeatures(1, max_length=2, num_heads=1)(1 blocks, 4 pairs)
    """

    weight: nn.Parameter

    def __init__(self, edge_dim: int, max_length: int, num_heads: int) -> None:
        super().__init__()
        check_size("edge_dim", edge_dim)
        check_size("max_length", max_length)
        check_size("num_heads", num_heads)
        self.edge_dim = edge_dim
        self.max_length = max_length
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.empty(max_length, num_heads, edge_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 0."""
        nn.init.zeros_(self.weight)

    def forward(self, edge_attr: Tensor, paths: Tensor | Sequence[Tensor], sizes: Tensor | None = None) -> Bias:
        """The bias of these edges and paths.

        Args:
            edge_attr: ``[E, F]`` floats.
            paths: ``[Nq, Nk, L]`` or ``[B, Nq, Nk, L]`` integers, L at most ``max_length``: row (i, j) holds the
                numbers of the edges of the path between i and j, the one at i first, the one at j last, filled up with
                -1. Or blocks: a sequence of ``[n, n, L]``, one a graph; or, with ``sizes``, the same flattened one
                after the other, ``[sum of n * n, L]``.
            sizes: ``[G]`` integers, the n of each graph, where the blocks are flattened; else None.
        """
        if sizes is None and not isinstance(paths, Tensor):
            paths, sizes = flattened("paths", paths, "[n, n, L]")
        values, weight = features(edge_attr, self.edge_dim, self.weight)
        edges = codes_within("paths", paths, -1, edge_attr.shape[0] - 1)  # type: ignore[arg-type]  # it checks
        if sizes is None and edges.dim() not in (3, 4):
            raise ValueError(
                f"paths is {describe(edges)}; it must be [Nq, Nk, L] or [B, Nq, Nk, L] (flattened blocks need sizes)"
            )
        if sizes is not None:
            sizes = codes_within("sizes", sizes, 0, 2**31 - 1)
            if sizes.dim() != 1 or edges.dim() != 2:
                raise ValueError(
                    f"paths is {describe(edges)} and sizes {describe(sizes)}; flattened blocks are [sum of n * n, L] "
                    f"and sizes [G]"
                )
        if edges.shape[-1] > self.max_length:
            raise ValueError(
                f"paths holds up to {edges.shape[-1]} edges a path, but max_length is {self.max_length}: make it "
                f"greater, or cut the paths"
            )
        if edges.shape[-1] == 0:  # no path has an edge: one place that none of them reaches
            edges = nn.functional.pad(edges, (0, 1), value=-1)
        products, lengths = product(values, weight[: edges.shape[-1]]), _lengths(edges)
        if sizes is None:
            return PathFeatureBias(products, *(x if edges.dim() == 4 else x[None] for x in (edges, lengths)))
        pair, head = (
            torch.arange(edges.shape[0], device=edges.device),
            torch.arange(self.num_heads, device=edges.device),
        )
        one_row = PathFeatureBias(products, edges[None, None], _within_blocks(lengths, edges, sizes)[None, None])
        zero = pair.new_zeros(1, 1)
        table = one_row.add(zero, head, zero, pair[:, None], None)  # [sum of n * n, Hq]: a row of pairs, as it were
        return PathBlockBias(repr(self), table, pair, sizes)

    def __repr__(self) -> str:
        return f"PathFeatures({self.edge_dim}, max_length={self.max_length}, num_heads={self.num_heads})"


class PathFeatureBias(Bias):
    """What :class:`PathFeatures` gives.

    Args:
        products: ``[E, L, Hq]``, what an edge brings at a place of a path.
        paths: ``[1 | B, Nq, Nk, L]``, in -1..E-1.
        lengths: ``[1 | B, Nq, Nk]``, how many edges each path has.
    """

    products: Tensor
    paths: Tensor
    lengths: Tensor
    space = "row"

    def __init__(self, products: Tensor, paths: Tensor, lengths: Tensor) -> None:
        super().__init__()
        hold(self, "products", products)
        hold(self, "paths", paths)
        hold(self, "lengths", lengths)

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        # A row of zeros after the last edge, which -1 picks.
        products = widened(self.products)
        products = torch.cat([products, products.new_zeros(1, *products.shape[1:])])
        total = torch.zeros((), dtype=products.dtype, device=products.device)
        for place in range(self.paths.shape[-1]):
            total = total + products[at_batch(self.paths, b, i, j, place), place, h]
        return total / at_batch(self.lengths, b, i, j).clamp(min=1)

    def check(self, shape: Shape) -> None:
        check_device("PathFeatures's weight", self.products, shape)
        if self.products.shape[2] != shape.num_heads:
            raise ValueError(
                f"PathFeatures was made for num_heads = {self.products.shape[2]}, but q has {shape.num_heads} heads"
            )
        check_pair_codes("PathFeatures", "paths", self.paths, shape)

    def __repr__(self) -> str:
        return f"PathFeatures({list(self.products.shape)}, {list(self.paths.shape)})"


@torch.library.custom_op("unified_attn::path_lengths", mutates_args=())
def _lengths(paths: Tensor) -> Tensor:
    """Edges of each path: ``[..., L]`` to ``[...]`` int64.

    Raises:
        ValueError: If an edge comes after a -1; names its place.
    """
    gaps = (paths[..., 1:] >= 0) & (paths[..., :-1] < 0)
    if bool(gaps.any()):
        *pair, place = gaps.nonzero()[0].tolist()
        raise ValueError(f"paths holds an edge after -1 at {[*pair, place + 1]}; paths are filled up at their end")
    return (paths >= 0).sum(-1)


@_lengths.register_fake
def _(paths: Tensor) -> Tensor:
    return paths.new_empty(paths.shape[:-1], dtype=torch.int64)


@torch.library.custom_op("unified_attn::paths_within_blocks", mutates_args=())
def _within_blocks(lengths: Tensor, paths: Tensor, sizes: Tensor) -> Tensor:
    """The lengths of flattened blocks' paths, once it is known that no edge is on paths of two graphs.

    Raises:
        ValueError: If one is; or if the blocks' sizes ask for another number of paths.
    """
    pairs = sizes * sizes
    if int(pairs.sum()) != paths.shape[0]:
        raise ValueError(
            f"sizes ask for {int(pairs.sum())} paths (the sum of n * n), but paths is {list(paths.shape)}: a row a path"
        )
    graph = torch.arange(sizes.shape[0], device=sizes.device).repeat_interleave(pairs)[:, None].expand_as(paths)
    used = paths >= 0
    edge, graph = paths[used], graph[used]
    owner = graph.new_zeros(int(edge.max()) + 1 if edge.numel() else 0)
    owner[edge] = graph
    if bool((other := owner[edge] != graph).any()):
        at = int(other.nonzero()[0])
        raise ValueError(
            f"paths holds edge {int(edge[at])} in blocks {int(graph[at])} and {int(owner[edge[at]])}: number the edges "
            f"on from graph to graph, as the rows of edge_attr (models.pack_graphs does)"
        )
    return lengths.clone()


@_within_blocks.register_fake
def _(lengths: Tensor, paths: Tensor, sizes: Tensor) -> Tensor:
    return torch.empty_like(lengths)
