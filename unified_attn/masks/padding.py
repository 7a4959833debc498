"""Keys, and on request queries, that are no real tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.masks.base import Mask, Prefix, Spans
from unified_attn.pairs import Pairs, Shape, check_count, check_device, check_integers, describe, fits


class Padding(Mask):
    """Hides padded keys; with ``queries`` it silences padded queries too (their output is 0).

    A padded token is also a query: unless it is silenced, its row holds numbers, finite but of no use.

    Args:
        keep: ``[B, Nk]`` bool, True = a real token. A first dimension of 1 serves the whole batch.
        queries: ``[B, Nq]`` bool, True = a real query; None = all are.

    Raises:
        TypeError: If a tensor is not bool (0/1 numbers are not masks).
        ValueError: If it does not have two dimensions, or, in a call, does not fit q and k.

    Example:
        >>> import torch
        >>> print(Padding(torch.tensor([[True, True, False]])).draw(3, 3))
        ##.
        ##.
        ##.
        >>> Padding.from_lengths(torch.tensor([2, 3])).keep
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """

    keep: Tensor
    queries: Tensor | None
    space = "row"

    def __init__(self, keep: Tensor, queries: Tensor | None = None) -> None:
        super().__init__()
        for name, tensor in (("keep", keep), ("queries", queries)):
            if tensor is None:
                continue
            if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
                got = describe(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(
                    f"{name} is {got}; give a bool tensor, True = a real token (numbers: write {name} != 0)"
                )
            if tensor.dim() != 2:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}; it must be [B, N] (one sequence: {name}[None])"
                )
        self.register_buffer("keep", keep, persistent=False)
        self.register_buffer("queries", queries, persistent=False)

    @classmethod
    def from_lengths(cls, lengths: Tensor, num_keys: int | None = None) -> Padding:
        """Tokens 0..length-1 of each sequence are real (padding on the right).

        Args:
            lengths: ``[B]`` integers.
            num_keys: Nk; default the greatest length.

        Raises:
            TypeError: If ``lengths`` are no integers.
            ValueError: If they are not ``[B]``, or one is negative or above ``num_keys``.
        """
        check_integers("lengths", lengths, "give the number of real tokens of each sequence, [B] integers")
        if lengths.dim() != 1:
            raise ValueError(f"lengths has shape {list(lengths.shape)}; it must be [B]")
        if num_keys is not None:
            check_count("num_keys", num_keys, "give the number of keys")
        longest = int(lengths.max()) if lengths.numel() else 0
        size = longest if num_keys is None else num_keys
        if lengths.numel() and (int(lengths.min()) < 0 or longest > size):
            raise ValueError(
                f"lengths run from {int(lengths.min())} to {longest}; they must lie in 0..num_keys = {size}"
            )
        return cls(torch.arange(size, device=lengths.device) < lengths[:, None])

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        def at(table: Tensor, n: Tensor) -> Tensor:
            return table[b if table.shape[0] != 1 else torch.zeros_like(b), n]

        allowed = at(self.keep, j)
        return allowed if self.queries is None else allowed & at(self.queries, i)

    def on(self, pairs: Pairs) -> Tensor:
        allowed = pairs.gather(self.keep[:, None, None, :])
        return allowed if self.queries is None else allowed & pairs.gather(self.queries[:, None, :, None])

    def spans(self, shape: Shape) -> Spans | None:
        """None if somewhere real tokens lie on both sides of padding."""
        num_keys = self.keep.shape[1]
        count = self.keep.sum(1, keepdim=True)
        if self.queries is None and bool((count == num_keys).all()):  # nothing is hidden
            low = count.new_zeros(1, 1).expand(1, shape.num_queries)
            return Spans(low, low + num_keys)
        first = self.keep.int().argmax(1, keepdim=True) if num_keys else count
        place = torch.arange(num_keys, device=self.keep.device)
        if not torch.equal((place >= first) & (place < first + count), self.keep):
            return None
        low, high = first.expand(-1, shape.num_queries), (first + count).expand(-1, shape.num_queries)
        return Spans(low, high if self.queries is None else torch.where(self.queries, high, low))

    def prefix(self, shape: Shape) -> Prefix:
        return Prefix(None, self.queries, self.keep)

    def check(self, shape: Shape) -> None:
        for name, tensor, size in (("keep", self.keep, shape.num_keys), ("queries", self.queries, shape.num_queries)):
            if tensor is None:
                continue
            check_device(f"Padding's {name}", tensor, shape)
            batch, tokens = tensor.shape
            if tokens != size or not fits(batch, shape.batch):
                side = "Nk" if name == "keep" else "Nq"
                raise ValueError(
                    f"Padding's {name} has shape {list(tensor.shape)}, but q and k ask for "
                    f"[B, {side}] = [{shape.batch}, {size}]"
                )

    def __repr__(self) -> str:
        queries = "" if self.queries is None else f", queries={list(self.queries.shape)}"
        return f"Padding({list(self.keep.shape)}{queries})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Padding.from_lengths(torch.tensor([9]), 12))
