"""A window, and a few tokens that see everything."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unified_attn.masks.base import Candidates, Mask
from unified_attn.masks.global_tokens import GlobalTokens
from unified_attn.masks.window import Window
from unified_attn.pairs import Pairs, Shape, check_count, check_far
from unified_attn.rows import Band


class Longformer(Mask):
    """Query i may attend key j where they are at most ``window`` apart, or one of them is a global token.

        Window(window, window) | GlobalTokens(global_tokens)

    The window compares positions; global tokens are tokens, the queries being the last Nq of them.

    Args:
        window: Tokens seen on each side, beside the query's own: half of the window size of the paper.
        global_tokens: As in :class:`GlobalTokens`: numbers of tokens, or ``[B, N]`` bool.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If ``window`` is negative, or 2 ** 62 or more; else as :class:`GlobalTokens`.

    Cost: lists (2 window + 1 + 2 G) N pairs at most, where positions are the default ones.

    Reference: Beltagy et al., Longformer, 2020, arXiv 2004.05150, section 3.1. Global tokens share the projections of
    all others here; in the paper they have their own.

    Example:
        >>> Longformer(1, [0])
        Longformer(window=1, global_tokens=[0])
        >>> print(Longformer(1, [0]).draw(6, 6))
        ######
        ###...
        ####..
        #.###.
        #..###
        #...##
        >>> print(Longformer(1, [0]).draw(2, 6))  # the last two tokens
        #..###
        #...##
    """

    def __init__(self, window: int, global_tokens: Sequence[int] | Tensor) -> None:
        super().__init__()
        check_count("window", window, "give a number of tokens on each side")
        if window < 0:
            raise ValueError(f"window is {window}; give a number of tokens on each side, >= 0")
        check_far("window", window, "")
        self.window = window
        self.global_tokens = GlobalTokens(global_tokens)
        self._rule = Window(window, window) | self.global_tokens

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self._rule.allow(b, h, i, j)

    def on(self, pairs: Pairs) -> Tensor:
        return self._rule.on(pairs)

    def check(self, shape: Shape) -> None:
        self.global_tokens.check(shape)

    def candidates(self, shape: Shape) -> Candidates | None:
        if shape.offset is None:
            return None
        band = Band(shape.num_queries, shape.num_keys, shape.offset, self.window, self.window, shape.device)
        return Candidates(self.global_tokens.beside(band, shape), self if self.global_tokens.varies else None)

    def __repr__(self) -> str:
        tokens = repr(self.global_tokens).removeprefix("GlobalTokens(").removesuffix(")")
        return f"Longformer(window={self.window}, global_tokens={tokens})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Longformer(1, [0, 6]))
