"""The edges of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from unified_attn.masks.base import Candidates, Mask
from unified_attn.pairs import Pairs, Shape, check_count, check_device, check_integers, describe
from unified_attn.rows import LIMIT, PairList, coded, edge_ends

if TYPE_CHECKING:
    import networkx
    import scipy.sparse


class Graph(Mask):
    """Query i may attend the sources j of the edges j -> i that come in to it.

    A graph is a value: it takes a copy of its edges, checks and sorts them once, and is meant to be shared by all
    layers and steps that use it. Edges keep the caller's order; parallel edges are keys of their own; nothing is added
    or dropped. As part of ``~graph``, ``graph | rule`` or ``graph & graph`` it counts as a set of pairs (``~~graph`` is
    the graph again). Compiled code that takes graphs of changing sizes makes them inside, from ``edge_index``: it is
    then compiled once for all.

    Args:
        edge_index: ``[2, E]`` integers as in torch-geometric: row 0 = source = key j, row 1 = target = query i.
        num_keys: Number of source nodes.
        num_queries: Number of target nodes, where they are another set; default ``num_keys``. Where sizes are given,
            edges are checked and sorted at once, else at first use, with the sizes of q and k.

    Raises:
        TypeError: If ``edge_index`` holds no integers.
        ValueError: If it is not ``[2, E]``, or an index is out of range (named with its row, edge and size).

    Example:
        >>> import torch
        >>> graph = Graph(torch.tensor([[0, 1, 1], [2, 2, 0]]), num_keys=3)
        >>> graph
        Graph(3 edges, 3 nodes)
        >>> print(graph.draw(3, 3))  # nobody points at node 1: its row is empty, and its output will be 0
        .#.
        ...
        ##.
    """

    edge_index: Tensor
    space = "row"

    def __init__(self, edge_index: Tensor, *, num_keys: int | None = None, num_queries: int | None = None) -> None:
        super().__init__()
        if isinstance(edge_index, Tensor) and edge_index.layout != torch.strided:
            raise TypeError(
                f"edge_index is a sparse tensor {describe(edge_index)}; an adjacency whose rows are queries becomes "
                f"Graph(adjacency.to_sparse_coo().coalesce().indices().flip(0)), a scipy matrix "
                f"Graph.from_scipy(matrix)"
            )
        check_integers("edge_index", edge_index, "give a [2, E] tensor of integers: sources, then targets")
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            turned = "; it looks turned round: pass edge_index.t()" if edge_index.shape[-1:] == (2,) else ""
            raise ValueError(
                f"edge_index has shape {list(edge_index.shape)}; it must be [2, E], sources then targets{turned}"
            )
        compiled = torch.compiler.is_compiling()  # there such checks would bound the sizes; the operator checks too
        if not compiled and edge_index.shape[1] > LIMIT:
            raise ValueError(f"edge_index holds {edge_index.shape[1]} edges; one graph holds at most {LIMIT}: split it")
        for name, size in (("num_keys", num_keys), ("num_queries", num_queries)):
            if size is not None:
                check_count(name, size, "give a number of nodes")
            if size is not None and not compiled and not 0 <= size <= LIMIT:
                raise ValueError(f"{name} is {size}; it must lie in 0..{LIMIT}")
        if num_keys is None and num_queries is not None:
            raise ValueError(f"num_queries = {num_queries} is given without num_keys; give both, or num_keys alone")
        self.num_keys = num_keys
        self.num_queries = num_keys if num_queries is None else num_queries
        self.register_buffer("edge_index", edge_index.detach().clone(), persistent=False)
        self._kept: PairList | None = None
        if self.num_keys is not None and self.num_queries is not None:
            self._list(self.num_queries, self.num_keys).rows()

    @classmethod
    def from_edges(
        cls, *, src: Tensor, dst: Tensor, num_keys: int | None = None, num_queries: int | None = None
    ) -> Graph:
        """The same from two vectors named by what they are: ``src[e] -> dst[e]``, ``[E]`` each."""
        for name, ends in (("src", src), ("dst", dst)):
            check_integers(name, ends, "give a vector of node numbers, [E]")
        if src.dim() != 1 or src.shape != dst.shape:
            raise ValueError(f"src is {describe(src)} and dst is {describe(dst)}; give two vectors of equal length")
        return cls(torch.stack([src, dst]), num_keys=num_keys, num_queries=num_queries)

    @classmethod
    def from_csr(cls, indptr: Tensor, indices: Tensor, *, num_keys: int | None = None) -> Graph:
        """Rows are queries: the keys of query i are ``indices[indptr[i]:indptr[i + 1]]``, in that edge order.

        Args:
            indptr: ``[Nq + 1]`` integers, from 0 to E, never falling.
            indices: ``[E]`` integers.
            num_keys: Nk; default Nq.
        """
        for name, ends in (("indptr", indptr), ("indices", indices)):
            check_integers(name, ends, "give a vector of integers")
            if ends.dim() != 1:
                raise ValueError(f"{name} has shape {list(ends.shape)}; it must have one dimension")
        counts = indptr.diff()
        if not len(indptr) or int(indptr[0]) != 0 or int(indptr[-1]) != len(indices) or bool((counts < 0).any()):
            raise ValueError(
                f"indptr must rise from 0 to E = {len(indices)} without falling; got {indptr.tolist()[:8]} ..."
            )
        query = torch.arange(len(counts), device=indptr.device).repeat_interleave(counts)
        return cls(
            torch.stack([indices.to(query.dtype), query]),
            num_keys=len(counts) if num_keys is None else num_keys,
            num_queries=len(counts),
        )

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.spmatrix | scipy.sparse.sparray) -> Graph:
        """Stored entries (i, j) of a sparse ``[Nq, Nk]`` matrix are edges j -> i, in its order; values are ignored."""
        coo: Any = matrix.tocoo()
        edge_index = torch.stack([torch.from_numpy(coo.col).long(), torch.from_numpy(coo.row).long()])
        return cls(edge_index, num_keys=matrix.shape[1], num_queries=matrix.shape[0])

    @classmethod
    def from_networkx(cls, graph: networkx.Graph) -> Graph:
        """Nodes are numbered in the order of ``graph.nodes``; an undirected edge is both directions, a loop once."""
        number = {node: i for i, node in enumerate(graph.nodes)}
        ends = [(number[u], number[v]) for u, v in graph.edges()]
        if not graph.is_directed():
            ends = [pair for u, v in ends for pair in ([(u, v), (v, u)] if u != v else [(u, v)])]
        edge_index = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).t()
        return cls(edge_index, num_keys=len(number))

    @property
    def num_edges(self) -> int:
        """E."""
        return self.edge_index.shape[1]

    def keep(self, edge_mask: Tensor) -> Mask:
        """The same graph with some edges hidden: they keep their numbers, and their weights are 0.

        Args:
            edge_mask: ``[E]`` or ``[E, Hq]`` bool, True = the edge stays.

        Raises:
            TypeError: If it is no bool tensor.
            ValueError: If it has another number of edges.
        """
        mask = EdgeMask(edge_mask)
        if edge_mask.shape[0] != self.num_edges:
            raise ValueError(
                f"edge_mask has shape {list(edge_mask.shape)}, but the graph has {self.num_edges} edges; give one bool "
                f"an edge, [{self.num_edges}] or [{self.num_edges}, Hq]"
            )
        return self & mask

    def reorder(self) -> tuple[Graph, Tensor]:
        """The same graph with its nodes renumbered so that neighbours lie close to each other, and their order.

        Where numbers say nothing of who is joined to whom (points of a mesh or a road map in random order), rows that
        are read together come to lie together, in the cache. Graphs whose neighbourhoods spread over all nodes, as
        citation and social networks', gain little. Edges keep their order, and so features of edges stay as they are.

        Returns:
            The graph, and ``[N]`` int64: its node n is node ``order[n]`` of this one. So ``x[order]`` are its rows, and
            ``out[order.argsort()]`` puts results back.

        Raises:
            ValueError: If the graph was made without ``num_keys``, or joins two sets of nodes.
            ModuleNotFoundError: If scipy is missing.

        Cost: O(E log E), once, on the CPU.
        Reference: reverse Cuthill-McKee, on the graph without directions: Cuthill and McKee, ACM 1969; George, 1971.

        Example:
            >>> ring = torch.tensor([[0, 3, 1, 4, 2], [3, 1, 4, 2, 0]])  # 0 -> 3 -> 1 -> 4 -> 2 -> 0
            >>> graph, order = Graph(ring, num_keys=5).reorder()
            >>> order[graph.edge_index].equal(ring)
            True
            >>> int((graph.edge_index[0] - graph.edge_index[1]).abs().max())
            2
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        if self.num_keys is None:
            raise ValueError("the graph was made without num_keys; give it: nodes without edges are renumbered too")
        if self.num_keys != self.num_queries:
            raise ValueError(f"{self!r} joins two sets of nodes; reorder() renumbers one")
        source, target = self.edge_index.cpu().numpy()
        size = (self.num_keys, self.num_keys)
        ends = np.concatenate([source, target]), np.concatenate([target, source])
        both = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=size)
        found = reverse_cuthill_mckee(both.tocsr(), symmetric_mode=True).astype(np.int64)  # a copy: it comes reversed
        order = torch.from_numpy(found).to(self.edge_index.device)
        return Graph(order.argsort()[self.edge_index.long()], num_keys=self.num_keys), order

    def check_unique(self) -> None:
        """Raises ValueError, naming the first, if some edge is there more than once."""
        _, inverse, counts = torch.unique(self.edge_index, dim=1, return_inverse=True, return_counts=True)
        if bool((counts > 1).any()):
            edges = (inverse == int((counts > 1).nonzero()[0])).nonzero()[:2, 0].tolist()
            j, i = self.edge_index[:, edges[0]].tolist()
            raise ValueError(f"edge {j} -> {i} is there more than once: as edges {edges[0]} and {edges[1]}")

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        ends = self.edge_index.long()
        width = int(max(ends[0].max(), j.max())) + 1 if ends.numel() and j.numel() else 1
        return torch.isin(i * width + j, ends[1] * width + ends[0])

    def on(self, pairs: Pairs) -> Tensor:
        listed = self.pairs(pairs.shape)
        codes, _ = coded(listed.query, listed.key, listed.num_queries, listed.num_keys)
        wanted = pairs.query * listed.num_keys + pairs.key
        return codes[torch.searchsorted(codes, wanted)] == wanted

    def check(self, shape: Shape) -> None:
        check_device("the graph", self.edge_index, shape)
        if self.num_keys is not None and self.num_keys != shape.num_keys:
            raise ValueError(f"the graph was made with num_keys = {self.num_keys}, but k has {shape.num_keys} rows")
        if self.num_queries is not None and self.num_queries != shape.num_queries:
            raise ValueError(
                f"the graph was made with num_queries = {self.num_queries}, but q has {shape.num_queries} rows"
            )
        self.pairs(shape)

    def candidates(self, shape: Shape) -> Candidates | None:
        return Candidates(self.pairs(shape))

    def pairs(self, shape: Shape) -> PairList:
        """The edges as a list of pairs, checked against the sizes of q and k."""
        return self._list(shape.num_queries, shape.num_keys)

    def _list(self, num_queries: int, num_keys: int) -> PairList:
        kept = self._kept
        if kept is not None and kept.num_queries == num_queries and kept.num_keys == num_keys:
            return kept
        if torch.compiler.is_compiling():
            query, key = edge_ends(self.edge_index, num_queries, num_keys)
            return PairList(query, key, num_queries, num_keys, edges=True)
        with torch.inference_mode(False):  # what is kept may take part in training later
            query, key = edge_ends(self.edge_index, num_queries, num_keys)
        self._kept = PairList(query, key, num_queries, num_keys, edges=True)
        return self._kept

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._kept = None  # the list stays on the device where it was made
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own lacks annotations
        return self

    @property
    def graph(self) -> Graph:
        return self

    @property
    def counts_from_zero(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self.num_keys is None:
            return f"Graph({self.num_edges} edges)"
        nodes = (
            f"{self.num_keys} nodes"
            if self.num_keys == self.num_queries
            else f"{self.num_keys} -> {self.num_queries} nodes"
        )
        return f"Graph({self.num_edges} edges, {nodes})"


class EdgeMask(Mask):
    """Hides edges of the graph beside it by number: see :meth:`Graph.keep`.

    Args:
        edge_mask: ``[E]`` or ``[E, Hq]`` bool, True = the edge stays.
    """

    edge_mask: Tensor
    space = "row"

    def __init__(self, edge_mask: Tensor) -> None:
        super().__init__()
        if not isinstance(edge_mask, Tensor) or edge_mask.dtype != torch.bool:
            got = describe(edge_mask) if isinstance(edge_mask, Tensor) else type(edge_mask).__name__
            raise TypeError(f"edge_mask is {got}; give a bool tensor, True = the edge stays")
        if edge_mask.dim() not in (1, 2):
            raise ValueError(f"edge_mask has shape {list(edge_mask.shape)}; it must be [E] or [E, Hq]")
        self.register_buffer("edge_mask", edge_mask, persistent=False)

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        raise TypeError("an edge mask is tied to edge numbers, not to pairs (i, j): use it as graph.keep(edge_mask)")

    def on(self, pairs: Pairs) -> Tensor:
        return pairs.of_edges(self.edge_mask)

    def check(self, shape: Shape) -> None:
        check_device("edge_mask", self.edge_mask, shape)
        if shape.num_edges is None:
            raise ValueError("edge_mask is tied to the edges of one graph, but the mask around it is a set of pairs")
        heads = self.edge_mask.shape[1] if self.edge_mask.dim() == 2 else shape.num_heads
        if self.edge_mask.shape[0] != shape.num_edges or heads != shape.num_heads:
            raise ValueError(
                f"edge_mask has shape {list(self.edge_mask.shape)}; the graph asks for [E] = [{shape.num_edges}] "
                f"or [E, Hq] = [{shape.num_edges}, {shape.num_heads}]"
            )

    def __repr__(self) -> str:
        return f"EdgeMask({list(self.edge_mask.shape)})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Graph(torch.stack([torch.arange(12), (torch.arange(12) + 1) % 12]), num_keys=12))
