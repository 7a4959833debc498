"""A block of a graph network: attention along edges, attention over the whole graph, a feed-forward part."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import elu, pad

from unified_attn.biases import Bias
from unified_attn.masks import Graph, Mask
from unified_attn.models.graph_net_config import GraphNetConfig
from unified_attn.nn import GATConv, GATv2Conv, TransformerConv
from unified_attn.operator import graph_attention

LOCAL = {"gat": GATConv, "gatv2": GATv2Conv, "transformer": TransformerConv}


class GraphBlock(nn.Module):
    """One block; each of its parts is there if the configuration has it.

        h = x + elu(local(norm(x))) + attention(norm(x))
        y = h + feed_forward(norm(h))

    Args:
        config: Of the network.

    Reference: both parts summed: Rampasek et al., 2022, arXiv 2205.12454, Eq. 1 to 4 (there normalised after each sum,
    by batch; here before each part, by node, so that a graph does not see which others it is packed with). Global
    attention alone: Ying et al., 2021, arXiv 2106.05234, Eq. 8 and 9.
    """

    def __init__(self, config: GraphNetConfig) -> None:
        super().__init__()
        c = config
        self.norm = nn.LayerNorm(c.channels)
        edge_dim = (c.channels if c.num_edge_types else c.edge_dim) or None
        self.local = (
            None
            if c.local is None
            else LOCAL[c.local](
                c.channels,
                c.channels // c.num_heads,
                heads=c.num_heads,
                dropout=c.attention_dropout,
                edge_dim=edge_dim,
            )
        )
        self.attention = GlobalAttention(c.channels, c.num_heads, c.attention_dropout) if c.global_attention else None
        self.feed_forward = (
            nn.Sequential(
                nn.LayerNorm(c.channels),
                nn.Linear(c.channels, c.ff_channels),
                nn.GELU(),
                nn.Dropout(c.dropout),
                nn.Linear(c.ff_channels, c.channels),
            )
            if c.ff_channels
            else None
        )
        self.dropout = nn.Dropout(c.dropout)

    def forward(
        self,
        x: Tensor,
        num_nodes: int,
        edges: Tensor | Graph,
        edge_vectors: Tensor | None,
        mask: Mask | None,
        bias: Bias | None,
    ) -> Tensor:
        """``[N + V, channels]`` to the same: N nodes, then V virtual ones, which have no edges."""
        normed, heard = self.norm(x), x
        if self.local is not None:
            along = elu(self.local(normed[:num_nodes], edges, edge_vectors))
            heard = heard + self.dropout(pad(along, (0, 0, 0, x.shape[0] - num_nodes)))
        if self.attention is not None:
            heard = heard + self.dropout(self.attention(normed, mask, bias))
        if self.feed_forward is not None:
            heard = heard + self.dropout(self.feed_forward(heard))
        return heard


class GlobalAttention(nn.Module):
    """Multi-head attention over rows ``[N, channels]``.

    Args:
        channels: H * D.
        num_heads: H.
        dropout: Probability to drop a weight in training.
    """

    def __init__(self, channels: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(channels, channels) for _ in range(4))
        self.num_heads = num_heads
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Mask | None, bias: Bias | None) -> Tensor:
        """Rows that have listened to those that the mask allows."""
        q, k, v = (p(x).unflatten(-1, (self.num_heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        out = graph_attention(q, k, v, mask, bias=bias, dropout_p=self.dropout if self.training else 0.0)
        joined: Tensor = self.o_proj(out.flatten(1))
        return joined
