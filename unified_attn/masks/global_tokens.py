"""Tokens that see everything and are seen by everything."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unified_attn.masks.base import Candidates, Keeper
from unified_attn.pairs import Pairs, Shape, check_count, check_device, describe, fits, hold
from unified_attn.rows import KEPT, Band, Listing, RowList, list_runs, pairs_of_values, recent


class GlobalTokens(Keeper):
    """Query i may attend key j where i or j is a global token: the attention of a few tokens with all, both ways.

    The queries are the last Nq of the Nk tokens, so a token that is cached stays the token that it was; positions given
    in a call change nothing. In :meth:`allow`, i and j are tokens.

    Args:
        tokens: Which tokens are global: their numbers, ints or a 1-D tensor of them (read at once, and so not inside
            of compiled code), or a bool tensor ``[B, N]`` that says so for each token (its first dimension may be 1;
            a copy is taken).

    Raises:
        TypeError: If ``tokens`` are neither, or uint8, which may be meant as either.
        ValueError: If a number is negative, a tensor has other dimensions, or, in a call, a number is no token of k,
            a bool tensor is not ``[B, Nk]``, or there are more queries than tokens.

    Cost: lists the pairs of G global tokens, 2 G N at most. Where they vary with the batch, the list is that of the
    tokens that are global somewhere in the batch.

    Reference: Beltagy et al., Longformer, 2020, arXiv 2004.05150, section 3.1; Ainslie et al., ETC, 2020,
    arXiv 2004.08483.

    Example:
        >>> import torch
        >>> GlobalTokens([0, 2])
        GlobalTokens([0, 2])
        >>> print(GlobalTokens([0, 2]).draw(4, 4))
        ####
        #.#.
        ####
        #.#.
        >>> print(GlobalTokens([0, 2]).draw(2, 4))  # the last two tokens
        ####
        #.#.
        >>> GlobalTokens(torch.tensor([[True, False, False, False]]))
        GlobalTokens([1, 4] bool)
    """

    flags: Tensor | None
    space = "token"

    def __init__(self, tokens: Sequence[int] | Tensor) -> None:
        super().__init__()
        remedy = "give the numbers of the global tokens as integers, or a [B, N] bool tensor, True = global"
        flags: Tensor | None = None
        numbers: list[int] = []
        if isinstance(tokens, Tensor) and tokens.dtype == torch.bool:
            if tokens.dim() != 2:
                raise ValueError(
                    f"tokens has shape {list(tokens.shape)}; a bool tensor must be [B, N] (one sequence: tokens[None])"
                )
            flags = tokens.clone()
        elif isinstance(tokens, Tensor):
            if tokens.dtype == torch.uint8:
                raise TypeError(
                    f"tokens is {describe(tokens)}: numbers of tokens, or flags? Write tokens.long() for numbers, "
                    f"tokens.bool() for flags [B, N]"
                )
            if tokens.is_floating_point() or tokens.is_complex():
                raise TypeError(f"tokens is {describe(tokens)}; {remedy}")
            if tokens.dim() != 1:
                raise ValueError(f"tokens has shape {list(tokens.shape)}; numbers of tokens must be [G]")
            numbers = tokens.tolist()
        elif isinstance(tokens, Sequence) and not isinstance(tokens, (str, bytes, bytearray)):
            for token in tokens:
                check_count("a global token", token, remedy)
            numbers = list(tokens)
        else:
            raise TypeError(f"tokens is a {type(tokens).__name__}; {remedy}")
        if numbers and min(numbers) < 0:
            raise ValueError(f"tokens holds {min(numbers)}; tokens are numbered from 0")
        self.tokens = tuple(sorted(set(numbers)))
        hold(self, "flags", flags)

    @property
    def varies(self) -> bool:
        """Whether the tokens vary with the batch."""
        return self.flags is not None and self.flags.shape[0] != 1

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if self.flags is None:
            return self._is_global(i) | self._is_global(j)
        row = b if self.varies else torch.zeros_like(b)
        return self.flags[row, i] | self.flags[row, j]

    def _is_global(self, token: Tensor) -> Tensor:
        """One by one, without a tensor of them: FlexAttention compiles pointwise operations alone."""
        found = token != token
        for number in self.tokens:
            found = found | (token == number)
        return found

    def on(self, pairs: Pairs) -> Tensor:
        if self.flags is None:
            return super().on(pairs)
        flags = self.flags
        queries = flags[:, pairs.shape.num_keys - pairs.shape.num_queries :]
        return pairs.gather(queries[:, None, :, None]) | pairs.gather(flags[:, None, None, :])

    def _each(self, shape: Shape) -> Tensor:
        """Whether each token is global, ``[1 | B, Nk]``."""
        if self.flags is not None:
            return self.flags
        tokens = torch.tensor(self.tokens, dtype=torch.int64, device=shape.device)
        return torch.zeros(1, shape.num_keys, dtype=torch.bool, device=shape.device).index_fill(1, tokens, True)

    def check(self, shape: Shape) -> None:
        if self.flags is not None:
            check_device("GlobalTokens' tokens", self.flags, shape)
            batch, tokens = self.flags.shape
            if tokens != shape.num_keys or not fits(batch, shape.batch):
                raise ValueError(
                    f"GlobalTokens' tokens have shape {list(self.flags.shape)}, but k asks for "
                    f"[B, Nk] = [{shape.batch}, {shape.num_keys}]"
                )
        elif self.tokens and self.tokens[-1] >= shape.num_keys:
            raise ValueError(
                f"token {self.tokens[-1]} is to be global, but k has {shape.num_keys} rows, numbered from 0"
            )
        if shape.num_queries > shape.num_keys:
            raise ValueError(
                f"q has {shape.num_queries} rows but k has {shape.num_keys}: with GlobalTokens the queries are the "
                f"last tokens of k, so there cannot be more"
            )

    def candidates(self, shape: Shape) -> Candidates | None:
        return Candidates(self.beside(None, shape), self if self.varies else None)

    def beside(self, band: Band | None, shape: Shape) -> Listing:
        """The pairs of these tokens, and of a band, each pair once; of tokens that vary, a superset."""
        key = (type(self), self.tokens, band, shape.num_queries, shape.num_keys, shape.device)
        return recent(KEPT if self.flags is None else self._kept, key, lambda: self._listing(band, shape))

    def _listing(self, band: Band | None, shape: Shape) -> Listing:
        """Key by key: of most queries the global keys before the band, the band, and those after; of others all."""
        queries, keys = shape.num_queries, shape.num_keys

        def runs() -> tuple[Tensor, Tensor, Tensor]:
            flags = self._each(shape).any(0)
            table = torch.cat([torch.arange(keys, device=flags.device), torch.argsort(~flags, stable=True)])
            before = torch.cat([flags.new_zeros(1, dtype=torch.int64), flags.cumsum(0)])  # global ones, of each key
            nothing = before.new_zeros(queries)
            low, high = (nothing, nothing) if band is None else band.ends()
            start = torch.stack([nothing + keys, low, keys + before[high]], 1)
            count = torch.stack([before[low], high - low, before[-1] - before[high]], 1)
            all_keys = torch.stack([nothing + keys, nothing, nothing], 1)
            everywhere = flags[keys - queries :, None]
            return torch.where(everywhere, 0, start), torch.where(everywhere, all_keys, count), table

        def made() -> RowList:
            start, count, table = runs()
            return list_runs(start, count, keys, table)

        if self.flags is None:
            number = len(self.tokens)
            few = (0 if band is None else band.num_pairs) + queries * number
            return Listing(torch.sym_min(few + number * keys, queries * keys), made)
        return Listing(pairs_of_values(runs()[1], queries, keys), made)

    def __repr__(self) -> str:
        return f"GlobalTokens({list(self.tokens) if self.flags is None else describe(self.flags)})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(GlobalTokens([0, 5]))
