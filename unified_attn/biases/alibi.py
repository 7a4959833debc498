"""Attention with linear biases."""

from __future__ import annotations

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
        self._lower = 1 << (num_heads.bit_length() - 1)  # the greatest power of two that is not above
        steps = [h + 1 if h < self._lower else h - self._lower + 0.5 for h in range(num_heads)]
        self.slopes = tuple(2.0 ** (step * (-8.0 / self._lower)) for step in steps)

    def _slope(self, h: Tensor) -> Tensor:
        """Slopes of some heads, float64: in closed form, so that there is no table to be moved or rounded."""
        step = torch.where(h < self._lower, h + 1, h - self._lower + 0.5)
        return torch.exp2(step.double() * (-8.0 / self._lower))

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        # The distance is exact in float64 up to 2^53; the product is rounded once, to the dtype of the logits.
        return -self._slope(h) * (i - j).abs()

    def check(self, shape: Shape) -> None:
        if self.num_heads != shape.num_heads:
            raise ValueError(f"ALiBi was made for num_heads = {self.num_heads}, but q has {shape.num_heads} heads")

    def __repr__(self) -> str:
        return f"ALiBi({self.num_heads})"
