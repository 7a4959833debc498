"""Graph attention networks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unified_attn.kernels.large import add
from unified_attn.masks import Mask
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
    no_queries,
    pair_of_sizes,
    split_heads,
    target_of,
    with_weights,
)
from unified_attn.nn.linear import Linear, glorot, project
from unified_attn.nn.self_loops import check_fill_value
from unified_attn.pairs import check_count, check_number, hold
from unified_attn.scores import GAT


class GATConv(nn.Module):
    """A layer of a graph attention network, with the arguments and weights of torch-geometric's ``GATConv``.

        logit_ij = LeakyReLU(<a_src, W x_j> + <a_dst, W x_i> + <a_edge, W_e e_ij>)
        out_i    = sum_{j in N(i)} softmax_j(logit_ij) W x_j  [+ residual x_i]  [+ bias]

    Either loads the other's ``state_dict``. It differs where that layer surprises its users:

    - Self-loops are added to the nodes that have none; the caller's own loops stay, with their features (there they are
      replaced). Several loops at one node stay several.
    - Over two node sets, ``(x_src, x_dst)`` or ``(x, None)``, asking for self-loops raises; ``(x, x)`` is one set, and
      so is ``(x, x[:n])``, whose targets are the first of the sources.
    - Edge features that were not declared raise, and so do declared ones that are missing.
    - Weights are returned as they are before dropout, and only for ``return_attention_weights=True``.
    - Targets without features, ``(x, None)``, under ``residual=True`` raise; there the residual is left out.

    Args:
        in_channels: Size of a node's features; -1: that of the first input. A pair (sources, targets) gives each end a
            weight of its own.
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
        bias: Whether to learn an additive bias.
        residual: Whether to add a learned projection of x_i.
        aggr: ``"add"``: attention has no other.
        flow: ``"source_to_target"``: for the other direction turn the edges.
        backend: What runs it, as in :func:`~unified_attn.attention`; ``"scatter"`` has second derivatives. May be set
            later, on the object.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument is out of range.

    Cost: O(E H C) time, O(N H C + E H) memory; edge features take O(E H), never ``[E, H, C]``.
    Reference: Velickovic et al., Graph Attention Networks, ICLR 2018, arXiv 1710.10903, Eq. 1 to 6.

    Example:
        >>> layer = GATConv(in_channels=5, out_channels=4, heads=2)
        >>> edge_index = torch.tensor([[0, 1], [2, 2]])
        >>> layer(torch.randn(3, 5), edge_index).shape
        torch.Size([3, 8])
        >>> out, (edges, weights) = layer(torch.randn(3, 5), edge_index, return_attention_weights=True)
        >>> edges  # the caller's edges, then the loops
        tensor([[0, 1, 0, 1, 2],
                [2, 2, 0, 1, 2]])
        >>> bool(torch.allclose(weights[[0, 1, 4]].sum(0), torch.ones(2)))
        True
    """

    att_src: nn.Parameter
    att_dst: nn.Parameter
    att_edge: nn.Parameter | None
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
        self.residual = residual
        if isinstance(fill_value, Tensor):
            hold(self, "fill_value", fill_value)
        else:
            self.fill_value = fill_value

        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        shared = isinstance(in_channels, int)
        self.lin = Linear(of_sources, width, bias=False, init="glorot") if shared else None
        self.lin_src = None if shared else Linear(of_sources, width, bias=False, init="glorot")
        self.lin_dst = None if shared else Linear(of_targets, width, bias=False, init="glorot")
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False, init="glorot")
        self.att_edge = None if edge_dim is None else nn.Parameter(torch.empty(1, heads, out_channels))
        self.res = Linear(of_targets, total, bias=False, init="glorot") if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all weights anew; the bias starts at 0."""
        for linear in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
        for vectors in (self.att_src, self.att_dst, self.att_edge):
            if vectors is not None:
                glorot(vectors)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Tensor | Mask,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Result:
        """Node features to node features.

        Args:
            x: ``[N, F]``, or a pair (sources ``[Ns, F]``, targets ``[Nt, F]`` or None).
            edge_index: ``[2, E]`` integers, sources then targets; a :class:`~unified_attn.Graph`; or a sparse tensor
                ``[Nt, Ns]``.
            edge_attr: ``[E, edge_dim]``, in the order of the edges.
            size: (Ns, Nt), needed for Nt where the targets have no features; else checked.
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
        source, target, one_set = ends(x)
        num_keys, num_queries = _sizes(source, target, size)
        loops = asks_for_loops(self.add_self_loops, one_set)
        if self.res is not None:
            target_of(target, "the residual")
        k, q, residual = self._project(source, target, one_set, num_queries)

        edges, edge_attr = read_edges(
            edge_index,
            edge_attr,
            num_keys,
            num_queries,
            edge_dim=self.edge_dim,
            loops=loops,
            fill_value=self.fill_value,
        )

        score = GAT(self.att_src[0], self.att_dst[0], self.negative_slope, edge=self._edge_logits(edge_attr))
        p = self.dropout if self.training else 0.0
        out, weights = attend(q, k, k, edges, score=score, dropout_p=p, return_weights=wanted, backend=self.backend)
        out = join_heads(out, self.concat)
        if residual is not None:
            out = add(out, residual)
        if self.bias is not None:
            out = add(out, self.bias)
        return with_weights(out, edges, weights)

    def _project(
        self, source: Tensor, target: Tensor | None, one_set: bool, num_queries: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys ``[Ns, H, C]``, queries ``[Nt, H, C]`` (one tensor where ends and weights are shared), and residual."""
        maps = [linear for linear in (self.lin, self.lin_src, self.lin_dst) if linear is not None]
        to_key, to_query = maps[0], maps[-1]  # one, or one an end
        shared = one_set and to_key is to_query
        if target is source:
            k, q, residual = project(source, to_key, None if shared else to_query, self.res)
        else:
            (k,) = project(source, to_key)
            q, residual = (None, None) if target is None else project(target, None if shared else to_query, self.res)
        k = split_heads(k, self.heads)
        if q is not None:
            return k, split_heads(q, self.heads), residual
        if target is None:
            return k, no_queries(k, num_queries), residual
        return k, k if target is source else k[:num_queries], residual

    def _edge_logits(self, edge_attr: Tensor | None) -> Tensor | None:
        """<a_edge, W_e e> as <W_e^T a_edge, e>, ``[E, H]``: the vectors are folded into the weight first."""
        if edge_attr is None or self.lin_edge is None or self.att_edge is None:
            return None
        self.lin_edge.fit(edge_attr)
        weight = self.lin_edge.weight.unflatten(0, (self.heads, self.out_channels))
        return edge_attr @ torch.einsum("hcf,hc->fh", weight, self.att_edge[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _sizes(source: Tensor, target: Tensor | None, size: tuple[int, int] | None) -> tuple[int, int]:
    """(Ns, Nt), where ``size`` says what features cannot, and must not contradict them."""
    if size is not None and not (isinstance(size, (tuple, list)) and len(size) == 2):
        raise TypeError(f"size is {size!r}; give (Ns, Nt), the numbers of sources and targets")
    for end in size or ():
        check_count("size", end, "give (Ns, Nt), the numbers of sources and targets")
    num_keys = source.shape[0]
    num_queries = num_keys if size is None else size[1]
    if target is not None:
        num_queries = target.shape[0]
    if size is not None:
        for name, given, found in (("sources", size[0], num_keys), ("targets", size[1], num_queries)):
            if given != found:
                raise ValueError(f"size is {tuple(size)}, but x has {found} {name}; leave size out, or give (Ns, Nt)")
    return num_keys, num_queries
