"""A mask given as a table."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.masks.base import Mask
from unified_attn.pairs import Pairs, Shape, check_broadcast, check_device, describe


class DenseMask(Mask):
    """A bool tensor, True = may attend, that broadcasts to ``[B, Hq, Nq, Nk]``.

    The operator takes such a tensor as ``mask=`` directly. Prefer a rule where there is one: a rule takes any length
    and lets back ends skip what it hides.

    Args:
        table: bool, up to four dimensions, each of full size or 1. Any strides.

    Raises:
        TypeError: If it is not bool. Float tensors are biases (:class:`~unified_attn.DenseBias`), and 0/1 numbers are
            neither.
        ValueError: In a call, if it does not broadcast.

    Example:
        >>> import torch
        >>> print(DenseMask(torch.ones(3, 3, dtype=torch.bool).tril()).draw(3, 3))
        #..
        ##.
        ###
    """

    table: Tensor
    space = "row"

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        if not isinstance(table, Tensor) or table.dtype != torch.bool:
            got = describe(table) if isinstance(table, Tensor) else type(table).__name__
            edges = isinstance(table, Tensor) and not table.is_floating_point() and table.shape[:1] == (2,)
            raise TypeError(
                f"mask is {got}, which could mean two things: values to add to the logits (0 and -inf, or others): "
                f"pass bias=DenseBias(mask); flags, 1 or 0: give a bool tensor, True = may attend (mask.bool())"
                + ("; for the edges of a graph pass Graph(edge_index)" if edges else "")
            )
        self.register_buffer("table", table, persistent=False)

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        table = self.table[(None,) * (4 - self.table.dim())]
        ends = (b, h, i, j)
        return table[tuple(e if size != 1 else torch.zeros_like(e) for e, size in zip(ends, table.shape, strict=True))]

    def on(self, pairs: Pairs) -> Tensor:
        return pairs.gather(self.table)

    def check(self, shape: Shape) -> None:
        check_device("the mask", self.table, shape)
        check_broadcast("the mask", self.table, shape)

    def __repr__(self) -> str:
        return f"DenseMask({list(self.table.shape)})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(DenseMask(torch.ones(12, 12, dtype=torch.bool).tril()))
