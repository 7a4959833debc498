"""No query sees a later key."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unified_attn.masks.base import Mask, Prefix, Reach
from unified_attn.pairs import Shape


class Causal(Mask):
    """Query i may attend keys j <= i.

    Args:
        align: What i counts where there are more or fewer queries than keys. ``"bottom_right"``: positions, so that by
            default the queries are the *last* Nq tokens and one cached query sees all keys. ``"top_left"``: rows of q
            and k, both from 0, as an encoder's prefix would want it; it takes no positions.

    Raises:
        ValueError: If ``align`` is neither, or positions are given beside ``"top_left"``.

    Example:
        >>> print(Causal().draw(2, 4))
        ###.
        ####
        >>> print(Causal(align="top_left").draw(2, 4))
        #...
        ##..
        >>> print(Causal().draw(4, 2))  # the first two queries come before every key
        ..
        ..
        #.
        ##
    """

    def __init__(self, align: Literal["bottom_right", "top_left"] = "bottom_right") -> None:
        super().__init__()
        if align not in ("bottom_right", "top_left"):
            raise ValueError(f"align is {align!r}; choose 'bottom_right' or 'top_left'")
        self.align = align
        self.space = "position" if align == "bottom_right" else "row"

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def check(self, shape: Shape) -> None:
        if self.align == "top_left" and shape.offset is None:
            raise ValueError(
                "Causal(align='top_left') counts rows, but positions were given: drop q_positions and k_positions, "
                "or use Causal(), which compares positions"
            )

    def band(self) -> Reach | None:
        return (None, 0) if self.align == "bottom_right" else None

    def prefix(self, shape: Shape) -> Prefix | None:
        if self.align == "bottom_right":
            return Prefix(0)
        return None if shape.offset is None else Prefix(-shape.offset)  # row = position - offset

    def __repr__(self) -> str:
        return "Causal()" if self.align == "bottom_right" else f"Causal(align={self.align!r})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Causal())
