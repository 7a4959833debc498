"""Attention with linear biases."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unified_attn.biases.base import Bias
from unified_attn.pairs import Shape, check_count


class ALiBi(Bias):
    """Minus slope times the distance of query and key: b_ij = -m_h |i - j|, i and j being positions.

    Slopes are float32 (float64 for float64 inputs) whatever the model's dtype: they are numbers, not a buffer.

    Args:
        num_heads: Hq. For a power of two the slopes are 2^(-8/H), 2^(-16/H), ...; otherwise those of the next lower
            power of two, followed by every second one of the next higher, as in the authors' code.

    Raises:
        ValueError: If ``num_heads`` is below 1, or, in a call, is not q's number of heads.

    Reference: Press et al., Train Short, Test Long, ICLR 2022, arXiv 2108.12409. The paper is causal; here the distance
    is absolute, which is the same under a causal mask.

    Example:
        >>> ALiBi(8).slopes[:3]
        (0.5, 0.25, 0.125)
        >>> ALiBi(6).slopes
        (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)
    """

    relative = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        check_count("num_heads", num_heads, "give a number of heads")
        if num_heads < 1:
            raise ValueError(f"num_heads is {num_heads}; it must be at least 1")
        self.num_heads = num_heads
        lower = 2 ** int(math.log2(num_heads))
        slopes = [2.0 ** (-8.0 * (h + 1) / lower) for h in range(lower)]
        slopes += [2.0 ** (-8.0 * (2 * h + 1) / (2 * lower)) for h in range(num_heads - lower)]
        self.slopes = tuple(slopes)

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        # The distance is exact in float64 up to 2^53; the product is rounded once, to the dtype of the logits.
        slopes = torch.tensor(self.slopes, dtype=torch.float64, device=h.device)
        return -slopes[h] * (i - j).abs()

    def check(self, shape: Shape) -> None:
        if self.num_heads != shape.num_heads:
            raise ValueError(f"ALiBi was made for num_heads = {self.num_heads}, but q has {shape.num_heads} heads")

    def __repr__(self) -> str:
        return f"ALiBi({self.num_heads})"
