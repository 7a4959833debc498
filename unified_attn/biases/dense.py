"""A bias given as a table."""

from __future__ import annotations

from torch import Tensor

from unified_attn.biases.base import Bias, widened
from unified_attn.pairs import Pairs, Shape, check_broadcast, check_device, describe, hold


class DenseBias(Bias):
    """Adds a float tensor that broadcasts to ``[B, Hq, Nq, Nk]``; its gradient has its own shape.

    -inf, or anything at or below the lowest finite value of its dtype, hides the pair as a mask would.

    Args:
        table: Up to four dimensions, each of full size or 1: ``()``, ``[Hq, 1, 1]``, ``[1, Hq, 1, Nk]``, ...

    Raises:
        TypeError: If it is no float tensor. Bool tensors are masks.
        ValueError: In a call, if it does not broadcast.

    Example:
        >>> import torch
        >>> from unified_attn import attention_weights
        >>> q = k = torch.zeros(1, 1, 2, 4)
        >>> attention_weights(q, k, bias=DenseBias(torch.tensor([0.0, float("-inf")])))[0, 0, 0]
        tensor([1., 0.])
    """

    table: Tensor
    space = "row"

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        if not isinstance(table, Tensor) or not table.is_floating_point():
            got = describe(table) if isinstance(table, Tensor) else type(table).__name__
            raise TypeError(
                f"the bias is {got}; give floats to add to the logits (True = may attend: pass it as mask=)"
            )
        hold(self, "table", table)

    def on(self, pairs: Pairs) -> Tensor:
        return pairs.gather(widened(self.table))

    def check(self, shape: Shape) -> None:
        check_device("DenseBias's table", self.table, shape)
        check_broadcast("DenseBias's table", self.table, shape)

    def __repr__(self) -> str:
        return f"DenseBias({list(self.table.shape)})"
