"""The graph Transformer of UniMP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.kernels.large import add
from unified_attn.masks import Mask
from unified_attn.nn.edge_features import edge_vectors
from unified_attn.nn.edges import read_edges
from unified_attn.nn.heads import (
    Result,
    attend,
    check_options,
    check_return,
    ends,
    join_heads,
    pair_of_sizes,
    split_heads,
    target_of,
    with_weights,
)
from unified_attn.nn.linear import Linear, project


class TransformerConv(nn.Module):
    """Dot-product attention over a graph, with the arguments and weights of torch-geometric's ``TransformerConv``.

        m_i   = sum_{j in N(i)} softmax_j(<W_q x_i, W_k x_j + W_e e_ij> / sqrt(C)) (W_v x_j + W_e e_ij)
        out_i = m_i + W_s x_i,  or with beta:  b_i W_s x_i + (1 - b_i) m_i,
        b_i   = sigmoid(<w, [m_i, W_s x_i, m_i - W_s x_i]>)

    Either loads the other's ``state_dict``. It differs where that layer surprises its users:

    - Edge features that were not declared raise, and so do declared ones that are missing.
    - Weights are returned only for ``return_attention_weights=True``; False means False.

    Args:
        in_channels: Size of a node's features; -1: that of the first input. A pair: (sources, targets).
        out_channels: C, size of a head.
        heads: H.
        concat: Heads side by side, ``H * C`` outputs; False: their mean, C outputs.
        beta: Whether the skip connection is gated; without ``root_weight`` there is nothing to gate.
        dropout: Probability to drop a weight in training.
        edge_dim: Size of an edge's features; None: there are none.
        bias: Whether the projections have biases.
        root_weight: Whether to add the projection W_s x_i.
        aggr: ``"add"``: attention has no other.
        flow: ``"source_to_target"``: for the other direction turn the edges.
        backend: What runs it, as in :func:`~unified_attn.attention`; ``"scatter"`` has second derivatives. May be set
            later, on the object.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument is out of range.

    Cost: O(E H C) time, O(N H C + E H) memory: ``[E, H, C]`` is formed of edge features alone, where it holds at most
    2**21 numbers.
    Reference: Shi et al., Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification,
    IJCAI 2021, arXiv 2009.03509, Eq. 3 to 5.

    Example:
        >>> layer = TransformerConv(in_channels=5, out_channels=4, heads=2, edge_dim=3)
        >>> edge_index, edge_attr = torch.tensor([[0, 1], [2, 2]]), torch.randn(2, 3)
        >>> layer(torch.randn(3, 5), edge_index, edge_attr).shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        *,
        aggr: str = "add",
        flow: str = "source_to_target",
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_options(heads, dropout, edge_dim, aggr, flow)
        of_sources, of_targets = pair_of_sizes(in_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.backend = backend
        self.heads = heads
        self.concat = concat
        self.beta = beta and root_weight
        self.dropout = dropout
        self.edge_dim = edge_dim
        self.root_weight = root_weight

        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_key = Linear(of_sources, width, bias=bias)
        self.lin_query = Linear(of_targets, width, bias=bias)
        self.lin_value = Linear(of_sources, width, bias=bias)
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False)
        self.lin_skip = Linear(of_targets, total, bias=bias)
        self.lin_beta = Linear(3 * total, 1, bias=False) if self.beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all weights anew."""
        linears = (self.lin_key, self.lin_query, self.lin_value, self.lin_edge, self.lin_skip, self.lin_beta)
        for linear in linears:
            if linear is not None:
                linear.reset_parameters()

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | Mask,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Result:
        """Node features to node features.

        Args:
            x: ``[N, F]``, or a pair (sources ``[Ns, F]``, targets ``[Nt, F]``).
            edge_index: ``[2, E]`` integers, sources then targets; a :class:`~unified_attn.Graph`, alone or in a mask
                that hides some of its edges; or a sparse tensor ``[Nt, Ns]``.
            edge_attr: ``[E, edge_dim]``, in the order of the edges.
            return_attention_weights: True: also return (edges ``[2, E]``, weights ``[E, H]``), in the caller's order.

        Returns:
            ``[Nt, H * C]``, or ``[Nt, C]`` without ``concat``.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If sizes do not fit, an index is out of range, or for what the class names.
        """
        wanted = check_return(return_attention_weights)
        source, given, _ = ends(x)
        target = target_of(given, "TransformerConv")
        sizes = source.shape[0], target.shape[0]
        edges, edge_attr = read_edges(edge_index, edge_attr, *sizes, edge_dim=self.edge_dim)

        of_targets = self.lin_query, self.lin_skip if self.root_weight else None
        of_sources = self.lin_key, self.lin_value
        if source is target:
            q, own, k, v = project(source, *of_targets, *of_sources)
        else:
            (q, own), (k, v) = project(target, *of_targets), project(source, *of_sources)
        q, k, v = (split_heads(x, self.heads) for x in (q, k, v))
        bias = edge_vectors(self.lin_edge, edge_attr, value=True)
        p = self.dropout if self.training else 0.0
        out, weights = attend(q, k, v, edges, bias=bias, dropout_p=p, return_weights=wanted, backend=self.backend)
        return with_weights(self._joined(join_heads(out, self.concat), own), edges, weights)

    def _joined(self, out: Tensor, own: Tensor | None) -> Tensor:
        """What was heard, and the node's own: added, or mixed by a gate."""
        if own is None:
            return out
        if self.lin_beta is None:
            return add(out, own)
        gate: Tensor = self.lin_beta(torch.cat([out, own, out - own], dim=-1)).sigmoid()
        return gate * own + (1 - gate) * out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
