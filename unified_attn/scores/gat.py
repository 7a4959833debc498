"""The score of graph attention networks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from unified_attn.pairs import Pairs, Shape, check_device, check_floats, check_number, hold
from unified_attn.scores.base import Form, Score
from unified_attn.vectors import Vectors


class GAT(Score):
    """LeakyReLU(<att_dst, q> + <att_src, k> + edge): ``att_src`` on keys (sources), ``att_dst`` on queries (targets).

    Static: every query ranks the keys alike (:class:`~unified_attn.GATv2` does not). In a GAT layer q, k and v are one
    projection W x.

    Args:
        att_src: ``[Hq, D]``.
        att_dst: ``[Hq, D]``.
        negative_slope: Of LeakyReLU.
        edge: ``[E, Hq]`` in the caller's edge order, added inside LeakyReLU, or None.

    Raises:
        ValueError: If shapes disagree, or, in a call, there is no graph to tie ``edge`` to.

    Reference: Velickovic et al., Graph Attention Networks, ICLR 2018, arXiv 1710.10903, Eq. 3.

    Example:
        >>> import torch
        >>> score = GAT(att_src=torch.tensor([[1.0]]), att_dst=torch.tensor([[2.0]]))
        >>> score.logits(torch.tensor([[[1.0]]]), torch.tensor([[[-3.0]]]))  # LeakyReLU(2 - 3)
        tensor([[-0.2000]])
    """

    att_src: Tensor
    att_dst: Tensor
    edge: Tensor | None

    def __init__(
        self, att_src: Tensor, att_dst: Tensor, negative_slope: float = 0.2, edge: Tensor | None = None
    ) -> None:
        super().__init__()
        for name, vectors in (("att_src", att_src), ("att_dst", att_dst)):
            check_floats(name, vectors, "give floats, [Hq, D]")
        if edge is not None:
            check_floats("edge", edge, "give floats, [E, Hq]")
        check_number("negative_slope", negative_slope, "give a number")
        if att_src.dim() != 2 or att_src.shape != att_dst.shape:
            raise ValueError(
                f"att_src has shape {list(att_src.shape)} and att_dst {list(att_dst.shape)}; both must be [Hq, D]"
            )
        if edge is not None and (edge.dim() != 2 or edge.shape[1] != att_src.shape[0]):
            raise ValueError(f"edge has shape {list(edge.shape)}; it must be [E, Hq] = [E, {att_src.shape[0]}]")
        self.negative_slope = negative_slope
        hold(self, "att_src", att_src)
        hold(self, "att_dst", att_dst)
        hold(self, "edge", edge)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return leaky_relu(_contract(q, self.att_dst) + _contract(k, self.att_src), self.negative_slope)

    def on(self, q: Tensor, k: Tensor, pairs: Pairs) -> Tensor:
        both = _contract(q, self.att_dst) + _contract(k, self.att_src)
        if self.edge is not None:
            both = both + pairs.of_edges(self.edge)
        return leaky_relu(both, self.negative_slope)

    def form(self, q: Tensor, k: Tensor, key_vectors: Vectors | None) -> Form | None:
        return Form(
            query=q,
            key=k,
            key_vectors=key_vectors,
            att=q.new_ones(self.att_src.shape[0], 1),
            contract_query=self.att_dst.to(q.dtype),
            contract_key=self.att_src.to(q.dtype),
            edge=None if self.edge is None else self.edge.to(q.dtype),
            negative_slope=self.negative_slope,
        )

    def check(self, shape: Shape) -> None:
        for name, vectors in (("att_src", self.att_src), ("att_dst", self.att_dst)):
            check_vectors(f"GAT's {name}", vectors, shape)
        if self.edge is not None:
            check_device("GAT's edge", self.edge, shape)
            if shape.num_edges is None or self.edge.shape[0] != shape.num_edges:
                graph = "no single Graph" if shape.num_edges is None else f"a graph of {shape.num_edges} edges"
                raise ValueError(f"GAT's edge holds {self.edge.shape[0]} edges, but the mask holds {graph}")

    def __repr__(self) -> str:
        edge = "" if self.edge is None else f", edge={list(self.edge.shape)}"
        return f"GAT({list(self.att_src.shape)}, negative_slope={self.negative_slope:g}{edge})"


def check_vectors(name: str, vectors: Tensor, shape: Shape) -> None:
    """Raises ValueError unless ``vectors`` is ``[Hq, D]`` on q's device."""
    check_device(name, vectors, shape)
    if vectors.shape != (shape.num_heads, shape.head_dim):
        raise ValueError(
            f"{name} has shape {list(vectors.shape)}, but q asks for [Hq, D] = [{shape.num_heads}, {shape.head_dim}]"
        )


def _contract(x: Tensor, att: Tensor) -> Tensor:
    """sum_d att[h, d] x[..., h, ..., d] for x ``[B, H, ..., D]``."""
    return torch.einsum("bh...d,hd->bh...", x, att.to(x.dtype))
