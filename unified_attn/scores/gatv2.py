"""The score of GATv2."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import leaky_relu

from unified_attn.pairs import Shape, check_floats, check_number, hold
from unified_attn.scores.base import Form, Score, over_heads
from unified_attn.scores.gat import check_vectors
from unified_attn.vectors import Vectors


class GATv2(Score):
    """sum_d att_d LeakyReLU(q + k)_d: the activation before the sum, so that queries can rank keys differently.

    In a GATv2 layer q = W_target x, k = v = W_source x. Edge features go inside the activation as key vectors:
    :class:`~unified_attn.EdgeProjection`, or :class:`~unified_attn.PairVectors` where they are already projected.

    Args:
        att: ``[Hq, D]``.
        negative_slope: Of LeakyReLU.

    Raises:
        ValueError: If ``att`` is not ``[Hq, D]``.

    Reference: Brody et al., How Attentive are Graph Attention Networks?, ICLR 2022, arXiv 2105.14491, Eq. 7.

    Example:
        >>> import torch
        >>> score = GATv2(torch.tensor([[1.0, 1.0]]))
        >>> score.logits(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, -5.0]]]))  # 2 + 0.2 * -5
        tensor([[1.]])
    """

    att: Tensor

    def __init__(self, att: Tensor, negative_slope: float = 0.2) -> None:
        super().__init__()
        check_floats("att", att, "give floats, [Hq, D]")
        check_number("negative_slope", negative_slope, "give a number")
        if att.dim() != 2:
            raise ValueError(f"att has shape {list(att.shape)}; it must be [Hq, D]")
        self.negative_slope = negative_slope
        hold(self, "att", att)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        both = leaky_relu(q + k, self.negative_slope)
        return (both * over_heads(self.att, both).to(both.dtype)).sum(-1)

    def form(self, q: Tensor, k: Tensor, key_vectors: Vectors | None) -> Form | None:
        return Form(q, k, key_vectors, att=self.att.to(q.dtype), negative_slope=self.negative_slope)

    def check(self, shape: Shape) -> None:
        check_vectors("GATv2's att", self.att, shape)

    def __repr__(self) -> str:
        return f"GATv2({list(self.att.shape)}, negative_slope={self.negative_slope:g})"
