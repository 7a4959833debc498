"""Graph networks: GAT, GATv2, graph Transformers and networks of both parts, as configurations of one model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.biases.learned import codes_within
from unified_attn.masks import Documents, Full, Graph, Mask
from unified_attn.models.graph_block import GraphBlock
from unified_attn.models.graph_net_config import GraphNetConfig
from unified_attn.models.graph_priors import GraphPriors
from unified_attn.models.node_encoding import NodeEncoding
from unified_attn.models.packing import sizes_of
from unified_attn.pairs import check_floats, check_integers, describe
from unified_attn.rows import edge_ends


class GraphNet(nn.Module):
    """Node features to a row a node or a graph: an encoding of nodes, blocks, a head.

    Several graphs go in packed, as :func:`~unified_attn.models.pack_graphs` gives them; each gets what it would get
    alone. In training, dropout and the signs of eigenvectors are drawn anew in every call.

    Args:
        config: What it reads, its parts, and its sizes.

    Raises:
        TypeError: If the configuration is none.

    Example:
        >>> from unified_attn.models import gat
        >>> model = GraphNet(gat(in_channels=5, out_channels=3))
        >>> model(torch.randn(4, 5), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([4, 3])
    """

    def __init__(self, config: GraphNetConfig) -> None:
        super().__init__()
        if not isinstance(config, GraphNetConfig):
            raise TypeError(f"config is a {type(config).__name__}; give a GraphNetConfig")
        self.config = config
        self.nodes = NodeEncoding(config)
        reads_types = config.num_edge_types and (config.local is not None or config.max_path_length)
        self.edge_table = nn.Embedding(config.num_edge_types, config.channels) if reads_types else None
        self.virtual = nn.Parameter(torch.randn(config.channels) * 0.02) if config.virtual_node else None
        self.priors = GraphPriors(config) if config.global_attention else None
        self.blocks = nn.ModuleList(GraphBlock(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.channels)
        self.head = nn.Linear(config.channels, config.out_channels)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Graph,
        *,
        edge_attr: Tensor | None = None,
        edge_types: Tensor | None = None,
        laplacian: Tensor | None = None,
        walks: Tensor | None = None,
        distance: Tensor | None = None,
        paths: Tensor | None = None,
        batch: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Tensor:
        """Rows of nodes, or of graphs.

        Args:
            x: ``[N, in_channels]`` floats, or ``[N]`` codes.
            edge_index: ``[2, E]`` integers, sources then targets, or a :class:`~unified_attn.Graph`.
            edge_attr: ``[E, edge_dim]`` floats.
            edge_types: ``[E]`` integers.
            laplacian: ``[N, laplacian_size]`` eigenvectors.
            walks: ``[N, walk_length]`` return probabilities.
            distance: Lengths of shortest paths, -1 = none: ``[N, N]`` or, block by block, ``[sum of n * n]``.
            paths: Edges along them, filled up with -1: ``[N, N, L]`` or ``[sum of n * n, L]``.
            batch: Graph of each node, ``[N]``, never falling; None: all nodes are one graph.
            num_graphs: G; default the last graph that has a node. Compiled code needs it.

        Returns:
            ``[N, out_channels]``, or ``[G, out_channels]``.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If it does not fit, is missing though the configuration names it, or is given though it does
                not.
        """
        c = self.config
        if not isinstance(x, Tensor) or x.dim() not in (1, 2):
            got = describe(x) if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TypeError(f"x is {got}; give a tensor [N, F], or [N] codes")
        for name, value, field in (
            ("edge_attr", edge_attr, "edge_dim"),
            ("edge_types", edge_types, "num_edge_types"),
            ("laplacian", laplacian, "laplacian_size"),
            ("walks", walks, "walk_length"),
            ("distance", distance, "max_distance"),
            ("paths", paths, "max_path_length"),
        ):
            _check_given(name, value, field, getattr(c, field))
        num_nodes = x.shape[0]
        sizes = sizes_of(batch, num_graphs, x)
        total = sizes.shape[0]
        graph = torch.zeros(num_nodes, dtype=torch.int64, device=x.device) if batch is None else batch.long()
        given = edge_index.edge_index if isinstance(edge_index, Graph) else edge_index
        check_integers("edge_index", given, "give [2, E] integers, sources then targets, or a Graph")
        ends = Graph(given).edge_index  # its shape is right
        targets, sources = edge_ends(ends, num_nodes, num_nodes)
        if batch is not None and not torch.compiler.is_compiling():  # compiled code would wait for the numbers
            _check_within(graph, targets, sources)
        vectors = self._edge_vectors(edge_attr, edge_types, ends.shape[1])

        h = self.nodes(x, (targets, sources), graph, total, laplacian, walks)
        mask: Mask | None = None
        bias = None
        if self.priors is not None:
            ids = graph
            if self.virtual is not None:
                h = torch.cat([h, self.virtual.expand(total, -1)])
                ids = torch.cat([graph, torch.arange(total, device=x.device)])
            mask = Full() if batch is None else Documents(ids)
            bias = self.priors(num_nodes, sizes, ends, edge_attr, edge_types, vectors, distance, paths)
        for block in self.blocks:
            h = block(h, num_nodes, edge_index, vectors, mask, bias)
        out: Tensor = self.head(self.norm(h[:num_nodes] if c.output == "node" else self._pooled(h, graph, sizes)))
        return out

    def _pooled(self, h: Tensor, graph: Tensor, sizes: Tensor) -> Tensor:
        num_nodes = graph.shape[0]
        if self.config.pooling == "virtual":
            return h[num_nodes:]
        total = h.new_zeros(sizes.shape[0], h.shape[1]).index_add(0, graph, h[:num_nodes])
        return total / sizes.clamp(min=1)[:, None] if self.config.pooling == "mean" else total

    def _edge_vectors(self, edge_attr: Tensor | None, edge_types: Tensor | None, count: int) -> Tensor | None:
        """What an edge is, ``[E, F]``: its features, or the embedding of its type; None if nothing is known of it."""
        if edge_attr is not None:
            check_floats("edge_attr", edge_attr, "give floats, [E, edge_dim]")
            if edge_attr.shape != (count, self.config.edge_dim):
                raise ValueError(f"edge_attr is {describe(edge_attr)}; it must be [{count}, {self.config.edge_dim}]")
        if edge_types is not None:
            types = codes_within("edge_types", edge_types, 0, self.config.num_edge_types - 1)
            if types.shape != (count,):
                raise ValueError(f"edge_types is {describe(types)}; it must be [E] = [{count}]")
            return None if self.edge_table is None else self.edge_table(types)
        return edge_attr


def _check_within(graph: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Raises ValueError if an edge joins nodes of two graphs."""
    across = (graph[targets] != graph[sources]).nonzero()
    if across.numel():
        e = int(across[0])
        i, j = int(targets[e]), int(sources[e])
        raise ValueError(
            f"edge {e} joins node {j} of graph {int(graph[j])} to node {i} of graph {int(graph[i])}; edges must stay "
            f"within a graph of batch"
        )


def _check_given(name: str, value: Tensor | None, field: str, declared: int) -> None:
    """Raises ValueError unless what is given is what the network was made to read."""
    if value is None and declared:
        raise ValueError(f"{name} is missing; the network was made with {field} = {declared}")
    if value is not None and not declared:
        raise ValueError(f"{name} is given, but the network was made with {field} = 0 and would not read it")
