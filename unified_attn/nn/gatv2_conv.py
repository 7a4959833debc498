"""Graph attention whose ranking of neighbours depends on the query."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unified_attn.kernels.large import add
from unified_attn.masks import Mask
from unified_attn.nn.edge_features import edge_vectors
from unified_attn.nn.edges import read_edges
from unified_attn.nn.heads import (
    Result,
    asks_for_loops,
    attend,
    check_options,
    check_return,
    check_self_loops,
    ends,
    join_heads,
    pair_of_sizes,
    split_heads,
    target_of,
    with_weights,
)
from unified_attn.nn.linear import Linear, glorot, project
from unified_attn.nn.self_loops import check_fill_value
from unified_attn.pairs import check_number, hold
from unified_attn.scores import GATv2


class GATv2Conv(nn.Module):
    """A layer of GATv2, with the arguments and weights of torch-geometric's ``GATv2Conv``.

        logit_ij = <a, LeakyReLU(W_l x_j + W_r x_i + W_e e_ij)>
        out_i    = sum_{j in N(i)} softmax_j(logit_ij) W_l x_j  [+ residual x_i]  [+ bias]

    Either loads the other's ``state_dict``. It differs where that layer surprises its users:

    - Self-loops are added to the nodes that have none; the caller's own loops stay, with their features (there they are
      replaced). Several loops at one node stay several.
    - Over two node sets, ``(x_src, x_dst)``, asking for self-loops raises; ``(x, x)`` is one set, and so is
      ``(x, x[:n])``, whose targets are the first of the sources.
    - Edge features that were not declared raise, and so do declared ones that are missing.
    - Weights are returned as they are before dropout, and only for ``return_attention_weights=True``.

    Args:
        in_channels: Size of a node's features; -1: that of the first input. A pair: (sources, targets).
        out_channels: C, size of a head.
        heads: H.
        concat: Heads side by side, ``H * C`` outputs; False: their mean, C outputs.
        negative_slope: Of LeakyReLU.
        dropout: Probability to drop a weight in training.
        add_self_loops: Whether to add the self-loops that are missing. ``"if_one_set"``: over one node set, and over
            two none, without an error.
        edge_dim: Size of an edge's features; None: there are none.
        fill_value: Features of an added loop: a number, a tensor ``[edge_dim]``, or a reduction of the features that
            point at its node: ``"mean"``, ``"add"``, ``"min"``, ``"max"``, ``"mul"``.
        bias: Whether to learn additive biases: of W_l, of W_r and of the output.
        share_weights: Whether W_r is W_l.
        residual: Whether to add a learned projection of x_i.
        aggr: ``"add"``: attention has no other.
        flow: ``"source_to_target"``: for the other direction turn the edges.
        backend: What runs it, as in :func:`~unified_attn.attention`; ``"scatter"`` has second derivatives. May be set
            later, on the object.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument is out of range.

    Cost: O(E H C) time, O(N H C + E H) memory: ``[E, H, C]`` is formed of edge features alone, where it holds at most
    2**21 numbers.
    Reference: Brody et al., How Attentive are Graph Attention Networks?, ICLR 2022, arXiv 2105.14491, Eq. 7.

    Example:
        >>> layer = GATv2Conv(in_channels=5, out_channels=4, heads=2, concat=False)
        >>> layer(torch.randn(3, 5), torch.tensor([[0, 1], [2, 2]])).shape
        torch.Size([3, 4])
        >>> between = GATv2Conv((5, 6), 4, add_self_loops=False)
        >>> between((torch.randn(3, 5), torch.randn(2, 6)), torch.tensor([[0, 2], [1, 1]])).shape
        torch.Size([2, 4])
    """

    att: nn.Parameter
    bias: nn.Parameter | None
    fill_value: float | Tensor | str

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool | Literal["if_one_set"] = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        *,
        aggr: str = "add",
        flow: str = "source_to_target",
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_options(heads, dropout, edge_dim, aggr, flow)
        check_number("negative_slope", negative_slope, "give a number")
        check_self_loops(add_self_loops)
        check_fill_value(fill_value)
        of_sources, of_targets = pair_of_sizes(in_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.backend = backend
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.edge_dim = edge_dim
        self.share_weights = share_weights
        self.residual = residual
        if isinstance(fill_value, Tensor):
            hold(self, "fill_value", fill_value)
        else:
            self.fill_value = fill_value

        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_l = Linear(of_sources, width, bias=bias, init="glorot")
        self.lin_r = self.lin_l if share_weights else Linear(of_targets, width, bias=bias, init="glorot")
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False, init="glorot")
        self.res = Linear(of_targets, total, bias=False, init="glorot") if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all weights anew; the bias of the output starts at 0."""
        for linear in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
        glorot(self.att)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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
            edge_index: ``[2, E]`` integers, sources then targets; a :class:`~unified_attn.Graph`; or a sparse tensor
                ``[Nt, Ns]``.
            edge_attr: ``[E, edge_dim]``, in the order of the edges.
            return_attention_weights: True: also return (edges ``[2, E + M]``, weights ``[E + M, H]``): the caller's
                edges in their order, then the M loops that were added. (Compiled code, whose sizes cannot depend on
                data, lists a loop a node, and those that were there already weigh 0.)

        Returns:
            ``[Nt, H * C]``, or ``[Nt, C]`` without ``concat``.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If sizes do not fit, an index is out of range, or for what the class names.
        """
        wanted = check_return(return_attention_weights)
        source, given, one_set = ends(x)
        target = target_of(given, "GATv2Conv")
        loops = asks_for_loops(self.add_self_loops, one_set)
        shared = one_set and self.share_weights
        of_targets = None if shared else self.lin_r, self.res
        if source is target:
            k, q, residual = project(source, self.lin_l, *of_targets)
        else:
            (k,), (q, residual) = project(source, self.lin_l), project(target, *of_targets)
        k = split_heads(k, self.heads)
        q = k[: target.shape[0]] if shared and target is not source else k if shared else split_heads(q, self.heads)

        edges, edge_attr = read_edges(
            edge_index,
            edge_attr,
            source.shape[0],
            target.shape[0],
            edge_dim=self.edge_dim,
            loops=loops,
            fill_value=self.fill_value,
        )

        bias = edge_vectors(self.lin_edge, edge_attr, value=False)
        p = self.dropout if self.training else 0.0
        score = GATv2(self.att[0], self.negative_slope)
        out, weights = attend(
            q, k, k, edges, bias=bias, score=score, dropout_p=p, return_weights=wanted, backend=self.backend
        )
        out = join_heads(out, self.concat)
        if residual is not None:
            out = add(out, residual)
        if self.bias is not None:
            out = add(out, self.bias)
        return with_weights(out, edges, weights)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
