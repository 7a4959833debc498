"""What a node is before it listens to anybody: its features, its degrees and its place in the graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.biases.learned import codes_within
from unified_attn.models.graph_net_config import GraphNetConfig
from unified_attn.pairs import check_floats, describe


class NodeEncoding(nn.Module):
    """The sum of what the configuration names.

        h_i = W x_i + z_in[indegree_i] + z_out[outdegree_i] + W_l laplacian_i + W_w walks_i

    W is a table where nodes have codes. Eigenvectors have no sign of their own: in training each column of each graph
    is turned at random (by torch's generator, so ``torch.manual_seed`` repeats it).

    Args:
        config: Of the network.

    Reference: degrees: Ying et al., 2021, arXiv 2106.05234, Eq. 5; eigenvectors: Dwivedi and Bresson, 2021, arXiv
    2012.09699, section 2.1; random walks: Dwivedi et al., 2022, arXiv 2110.07875, section 3.2.
    """

    def __init__(self, config: GraphNetConfig) -> None:
        super().__init__()
        c = config
        self.in_channels, self.num_node_types = c.in_channels, c.num_node_types
        self.max_degree = c.max_degree
        self.features = nn.Linear(c.in_channels, c.channels) if c.in_channels else None
        self.types = nn.Embedding(c.num_node_types, c.channels) if c.num_node_types else None
        self.in_degree, self.out_degree = (
            nn.Embedding(c.max_degree + 1, c.channels) if c.max_degree else None for _ in range(2)
        )
        self.laplacian = nn.Linear(c.laplacian_size, c.channels, bias=False) if c.laplacian_size else None
        self.walks = nn.Linear(c.walk_length, c.channels, bias=False) if c.walk_length else None

    def forward(
        self,
        x: Tensor,
        edges: tuple[Tensor, Tensor],
        graph: Tensor,
        num_graphs: int,
        laplacian: Tensor | None,
        walks: Tensor | None,
    ) -> Tensor:
        """``[N, channels]``.

        Args:
            x: ``[N, F]`` floats, or ``[N]`` codes.
            edges: Targets and sources of the edges, ``[E]`` each.
            graph: The graph of each node, ``[N]``.
            num_graphs: G.
            laplacian: ``[N, K]`` or None.
            walks: ``[N, T]`` or None.
        """
        encoded = self._nodes(x)
        for table, ends in zip((self.in_degree, self.out_degree), edges, strict=True):
            if table is not None:
                degree = torch.zeros_like(graph).index_add(0, ends, torch.ones_like(ends))
                encoded = encoded + table(degree.clamp(max=self.max_degree))
        for name, linear, rows in (("laplacian", self.laplacian, laplacian), ("walks", self.walks, walks)):
            if linear is None or rows is None:
                continue
            check_floats(name, rows, f"give floats, [N, {linear.in_features}]")
            if rows.shape != (x.shape[0], linear.in_features):
                raise ValueError(
                    f"{name} is {describe(rows)}; it must be [N, K] = [{x.shape[0]}, {linear.in_features}]"
                )
            if name == "laplacian" and self.training:
                signs = torch.randint(2, (num_graphs, rows.shape[1]), device=rows.device) * 2 - 1
                rows = rows * signs[graph]
            encoded = encoded + linear(rows)
        return encoded

    def _nodes(self, x: Tensor) -> Tensor:
        encoded: Tensor
        if self.types is not None:
            if x.dim() != 1:
                raise ValueError(
                    f"x is {describe(x)}; the network reads codes, [N] integers in 0..{self.num_node_types - 1}"
                )
            encoded = self.types(codes_within("x", x, 0, self.num_node_types - 1))
            return encoded
        assert self.features is not None
        check_floats("x", x, f"give floats, [N, {self.in_channels}]")
        if x.dim() != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"x is {describe(x)}; it must be [N, F], F = {self.in_channels}")
        encoded = self.features(x)
        return encoded
