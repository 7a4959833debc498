"""Several documents, or graphs, in one sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.masks.base import Candidates, Keeper, Spans
from unified_attn.pairs import Pairs, Shape, check_device, check_integers, describe, fits, hold
from unified_attn.rows import Listing, list_runs, pairs_of_values, recent, union


class Documents(Keeper):
    """Tokens attend the tokens of their own document: sequence packing without leaks.

    The queries are the last Nq of the Nk tokens that ``ids`` tells of, whatever positions a call is given: those may
    start anew in each document. In :meth:`allow`, i and j are tokens.

    Args:
        ids: ``[N]`` or ``[B, N]`` integers: the document of each token, in any order. Also torch-geometric's ``batch``,
            which says for each node in which graph it is. A copy is taken.

    Raises:
        TypeError: If ``ids`` are no integers.
        ValueError: If they have other dimensions, or, in a call, are not Nk; or if there are more queries than tokens.

    Cost: lists the pairs of tokens of one document, after one sort of the ids. Where the ids vary with the batch, the
    list is the union over the batch.

    Reference: Krell et al., Efficient sequence packing without cross-contamination, 2021, arXiv 2107.02027.

    Example:
        >>> import torch
        >>> print(Documents(torch.tensor([0, 0, 1, 1, 1])).draw(5, 5))
        ##...
        ##...
        ..###
        ..###
        ..###
        >>> print(Documents(torch.tensor([7, 3, 7, 3])).draw(2, 4))  # the last two tokens; ids need no order
        #.#.
        .#.#
        >>> Documents.from_lengths(torch.tensor([2, 0, 3])).ids
        tensor([0, 0, 2, 2, 2])
        >>> Documents.from_cu_seqlens(torch.tensor([0, 2, 2, 5]))
        Documents([5] int64)
    """

    ids: Tensor
    space = "token"

    def __init__(self, ids: Tensor) -> None:
        super().__init__()
        check_integers("ids", ids, "give the document of each token as integers, [N] or [B, N]")
        if ids.dim() not in (1, 2):
            raise ValueError(f"ids has shape {list(ids.shape)}; it must be [N] or [B, N]")
        hold(self, "ids", ids.to(torch.int64, copy=True, memory_format=torch.contiguous_format))

    @classmethod
    def from_lengths(cls, lengths: Tensor) -> Documents:
        """Documents one after another. Not inside of compiled code: a compiler cannot know how many tokens there are.

        Args:
            lengths: ``[D]`` integers; 0 is an empty document.

        Raises:
            TypeError: If ``lengths`` are no integers.
            ValueError: If they are not ``[D]``, or one is negative.
        """
        check_integers("lengths", lengths, "give the number of tokens of each document, [D] integers")
        if lengths.dim() != 1:
            raise ValueError(f"lengths has shape {list(lengths.shape)}; it must be [D]")
        if bool((lengths < 0).any()):
            raise ValueError(f"lengths holds {int(lengths.min())}; a document has 0 tokens or more")
        return cls(torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths.long()))

    @classmethod
    def from_cu_seqlens(cls, cu: Tensor) -> Documents:
        """The same from where documents begin: document d holds tokens ``cu[d]`` up to ``cu[d + 1]``.

        Args:
            cu: ``[D + 1]`` integers from 0 to N that never fall.

        Raises:
            TypeError: If ``cu`` are no integers.
            ValueError: If they are not ``[D + 1]``, do not start at 0, or fall.
        """
        check_integers("cu", cu, "give where documents begin and the last one ends, [D + 1] integers")
        if cu.dim() != 1 or cu.numel() == 0:
            raise ValueError(f"cu has shape {list(cu.shape)}; it must be [D + 1]")
        if int(cu[0]) != 0:
            raise ValueError(f"cu starts at {int(cu[0])}; the first document begins at token 0")
        lengths = cu.long().diff()
        if bool((lengths < 0).any()):
            d = int((lengths < 0).nonzero()[0])
            raise ValueError(f"cu falls from {int(cu[d])} to {int(cu[d + 1])} at entry {d + 1}; it must never fall")
        return cls.from_lengths(lengths)

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if self.ids.dim() == 1:
            return self.ids[i] == self.ids[j]
        row = b if self.ids.shape[0] != 1 else torch.zeros_like(b)
        return self.ids[row, i] == self.ids[row, j]

    def on(self, pairs: Pairs) -> Tensor:
        ids = self.ids if self.ids.dim() == 2 else self.ids[None]
        queries = ids[:, ids.shape[1] - pairs.shape.num_queries :]
        return pairs.gather(queries[:, None, :, None]) == pairs.gather(ids[:, None, None, :])

    def check(self, shape: Shape) -> None:
        check_device("Documents' ids", self.ids, shape)
        batch = self.ids.shape[0] if self.ids.dim() == 2 else 1
        if self.ids.shape[-1] != shape.num_keys or not fits(batch, shape.batch):
            raise ValueError(
                f"Documents' ids have shape {list(self.ids.shape)}, but k asks for [{shape.num_keys}] or "
                f"[B, Nk] = [{shape.batch}, {shape.num_keys}]"
            )
        if shape.num_queries > shape.num_keys:
            raise ValueError(
                f"q has {shape.num_queries} rows but k has {shape.num_keys}: with Documents the queries are the last "
                f"tokens of k, so there cannot be more"
            )

    def candidates(self, shape: Shape) -> Candidates | None:
        sizes = (shape.num_queries, shape.num_keys)
        key = (*sizes, shape.device)
        varies = self.ids.dim() == 2 and self.ids.shape[0] != 1
        return Candidates(recent(self._kept, key, lambda: self._listing(*sizes, varies)), self if varies else None)

    def spans(self, shape: Shape) -> Spans | None:
        if self.ids.dim() == 2 and self.ids.shape[0] != 1:
            return None
        sizes = (shape.num_queries, shape.num_keys)
        return recent(self._kept, ("spans", *sizes), lambda: (self._spans(*sizes),))[0]

    def _spans(self, num_queries: int, num_keys: int) -> Spans | None:
        """From where the id changes to where it changes next; None if a document comes back."""
        ids = self.ids.flatten()
        _, document, lengths = torch.unique_consecutive(ids, return_inverse=True, return_counts=True)
        if len(lengths) > len(torch.unique(ids)):
            return None
        ends = lengths.cumsum(0)
        own = document[num_keys - num_queries :]
        return Spans((ends - lengths)[None, own], ends[None, own])

    def _listing(self, num_queries: int, num_keys: int, varies: bool) -> Listing:
        """In a table of tokens sorted by document, the keys of a query are neighbours; one table a batch entry."""
        ids = self.ids if self.ids.dim() == 2 else self.ids[None]
        queries = ids[:, num_keys - num_queries :].contiguous()
        found, table = torch.sort(ids, stable=True)
        start = torch.searchsorted(found, queries)
        count = torch.searchsorted(found, queries, right=True) - start
        start = start + torch.arange(ids.shape[0], device=ids.device)[:, None] * num_keys
        listing = Listing(
            pairs_of_values(count, num_queries, num_keys),
            lambda: list_runs(start.t(), count.t(), num_keys, table.flatten()),
        )
        return union([listing], num_queries, num_keys) if varies else listing

    def __repr__(self) -> str:
        return f"Documents({describe(self.ids)})"


if __name__ == "__main__":
    from unified_attn.masks._show import show

    show(Documents.from_lengths(torch.tensor([3, 5, 4])))
