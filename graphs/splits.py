"""Which nodes or graphs a model trains on, is chosen by and is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphs.checks import check_numbers
from unified_attn.pairs import check_count


@dataclass(frozen=True, eq=False)
class Split:
    """Numbers of nodes (or of graphs), int64, no number twice.

    Args:
        train: ``[T]``, learned from.
        val: ``[V]``, for choosing a model and when to stop.
        test: ``[S]``, for the reported figure alone.

    Raises:
        TypeError: If a part is no int64 tensor.
        ValueError: If a number is negative, or there twice, within a part or in two.
    """

    train: Tensor
    val: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        parts = {"train": self.train, "val": self.val, "test": self.test}
        for name, numbers in parts.items():
            check_numbers(name, numbers)
        ascending = torch.cat(list(parts.values())).sort().values
        twice = ascending[1:][ascending[1:] == ascending[:-1]]
        if len(twice):
            number = int(twice[0])
            holders = [name for name, numbers in parts.items() if bool((numbers == number).any())]
            raise ValueError(
                f"a split holds {number} more than once, in {' and '.join(holders)}; give each number once"
            )

    @classmethod
    def from_masks(cls, train: Tensor, val: Tensor, test: Tensor) -> Split:
        """The same from bool masks ``[N]``."""
        return cls(*(mask.nonzero()[:, 0] for mask in (train, val, test)))

    def __repr__(self) -> str:
        return f"Split({len(self.train)} train, {len(self.val)} val, {len(self.test)} test)"


def check_splits(splits: list[Split], count: int) -> None:
    """Raises ValueError if a split holds a number that so many things do not have."""
    for i, split in enumerate(splits):
        for part in ("train", "val", "test"):
            check_numbers(f"splits[{i}].{part}", getattr(split, part), count)


def stratified_folds(y: Tensor, num_folds: int = 10, *, seed: int = 0) -> list[Split]:
    """Cross-validation in which every fold has each class in its proportion, to within one item a class.

    Split i tests on fold i and validates on the fold after it. Where a paper trains on all but the test fold and has no
    validation set (GIN: Xu et al., 2019, arXiv:1810.00826), its training set is ``train`` and ``val`` together.

    Args:
        y: Class of each item, ``[G]`` integers.
        num_folds: At least 3, at most G.
        seed: Of the shuffle within each class.

    Raises:
        ValueError: If ``num_folds`` is out of range.

    Example:
        >>> stratified_folds(torch.tensor([0, 0, 0, 1, 1, 1]), 3)[0]
        Split(2 train, 2 val, 2 test)
    """
    check_count("num_folds", num_folds, "give an integer")
    if not 3 <= num_folds <= len(y):
        raise ValueError(f"num_folds is {num_folds}; it must lie in 3..{len(y)}, the number of items")
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[y[shuffled].argsort(stable=True)]
    fold = torch.empty(len(y), dtype=torch.int64)
    fold[by_class] = torch.arange(len(y)) % num_folds  # dealt out class after class, so that sizes are even too
    splits = []
    for i in range(num_folds):
        val, test = fold == (i + 1) % num_folds, fold == i
        splits.append(Split.from_masks(~(val | test), val, test))
    return splits
