"""Every query meets every key."""

from __future__ import annotations

from torch import Tensor

from unified_attn.masks.base import Mask, Reach


class Full(Mask):
    """No pair is hidden: the mask of an encoder without padding, and what ``mask=None`` means.

    Example:
        >>> print(Full().draw(2, 3))
        ###
        ###
    """

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i == i

    def band(self) -> Reach | None:
        return None, None

    def __repr__(self) -> str:
        return "Full()"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Full())
