"""A band around each query: sliding-window attention."""

from __future__ import annotations

from torch import Tensor

from unified_attn.masks.base import Mask, Reach
from unified_attn.pairs import check_far


class Window(Mask):
    """Query i may attend keys with ``-left <= j - i <= right``, i and j being positions.

    Args:
        left: Keys before the query's own that it sees; None = all.
        right: Keys after its own; None = all.

    Raises:
        ValueError: If a side is negative, or 2 ** 62 or more.
        TypeError: If a side is neither int nor None.

    Reference: Beltagy et al., Longformer, 2020, arXiv 2004.05150, section 3.1 (symmetric); Jiang et al., Mistral 7B,
    2023, arXiv 2310.06825 (``Window.causal``).

    Example:
        >>> print(Window(1, 0).draw(4, 4))
        #...
        ##..
        .##.
        ..##
        >>> Window.causal(2)
        Window(left=1, right=0)
        >>> print(Window(1, 0).draw(2, 4))  # the last two tokens
        .##.
        ..##
    """

    def __init__(self, left: int | None, right: int | None) -> None:
        super().__init__()
        for name, side in (("left", left), ("right", right)):
            if side is None:
                continue
            if not isinstance(side, int) or isinstance(side, bool):
                raise TypeError(f"{name} is {side!r}; give a number of keys, or None for no limit")
            if side < 0:
                raise ValueError(f"{name} is {side}; give a number of keys >= 0, or None for no limit")
            check_far(name, side, ", or None for no limit")
        self.left = left
        self.right = right

    @classmethod
    def causal(cls, size: int) -> Window:
        """``size`` keys, the query's own and those before it: Mistral's window.

        Raises:
            ValueError: If ``size`` is below 1.
        """
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"size is {size!r}; give the number of keys, counting the query's own")
        if size < 1:
            raise ValueError(f"size is {size}; a window counts the query's own key, so it is at least 1")
        return cls(size - 1, 0)

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = i == i
        if self.left is not None:
            allowed = allowed & (j - i >= -self.left)
        if self.right is not None:
            allowed = allowed & (j - i <= self.right)
        return allowed

    def band(self) -> Reach | None:
        return self.left, self.right

    def __repr__(self) -> str:
        return f"Window(left={self.left}, right={self.right})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Window(2, 1))
