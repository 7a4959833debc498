"""A bias given as a function."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from unified_attn.biases.base import Bias

Values = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Additive(Bias):
    """Adds ``fn(b, h, i, j)`` to the logit of query i and key j.

    Args:
        fn: Takes four integer tensors that broadcast (batch index, query head, positions of query and key) and returns
            a float tensor that broadcasts with them. A tensor that it captures gets its gradient.

    Raises:
        TypeError: If ``fn`` is not callable, or, in a call, returns anything but floats.

    Example:
        >>> Additive(lambda b, h, i, j: -0.1 * (i - j).abs())
        Additive(<lambda>)
    """

    def __init__(self, fn: Values) -> None:
        super().__init__()
        if not callable(fn):
            raise TypeError(f"fn is a {type(fn).__name__}; give a function of (b, h, i, j) that returns floats")
        self.fn = fn

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        values = self.fn(b, h, i, j)
        if values is None:  # a Bias may add nothing, a function that returns nothing was not finished
            raise TypeError(f"{self!r} returned None; its function must return floats")
        return values

    def __repr__(self) -> str:
        return f"Additive({getattr(self.fn, '__name__', type(self.fn).__name__)})"
