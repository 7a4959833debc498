"""A mask given as a function."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from unified_attn.masks.base import Mask

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Where(Mask):
    """Query i may attend key j where ``fn(b, h, i, j)`` is True.

    Args:
        fn: Takes four integer tensors that broadcast (batch index, query head, positions of query and key) and returns
            a bool tensor that broadcasts with them. Tensors that it captures must be on q's device.

    Raises:
        TypeError: If ``fn`` is not callable, or, in a call, returns anything but a bool tensor.

    Example:
        >>> print(Where(lambda b, h, i, j: (i - j) % 2 == 0).draw(4, 4))
        #.#.
        .#.#
        #.#.
        .#.#
    """

    def __init__(self, fn: Rule) -> None:
        super().__init__()
        if not callable(fn):
            raise TypeError(f"fn is a {type(fn).__name__}; give a function of (b, h, i, j) that returns a bool tensor")
        self.fn = fn

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.fn(b, h, i, j)

    def __repr__(self) -> str:
        return f"Where({getattr(self.fn, '__name__', type(self.fn).__name__)})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Where(lambda b, h, i, j: (i - j) % 4 == 0))
