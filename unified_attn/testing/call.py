"""The calls at which things are checked: sizes, index tensors, random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unified_attn import explain
from unified_attn.backends import BACKENDS, find
from unified_attn.masks import Mask
from unified_attn.pairs import Pairs, Shape, check_count
from unified_attn.rows import PairList
from unified_attn.testing.formula import all_pairs

Sizes = Sequence[tuple[int, int]]

SIZES: Sizes = ((1, 1), (5, 5), (3, 8), (1, 6), (7, 4), (63, 63))
"""Queries x keys that are tried by default."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call with default positions; with a graph its pairs are the edges, ``query`` and ``key``, else all pairs."""

    shape: Shape
    mask: Mask
    query: Tensor
    key: Tensor
    pairs: Pairs

    @property
    def sizes(self) -> str:
        """For messages."""
        return f"{self.shape.num_queries} queries x {self.shape.num_keys} keys"

    def entries(self, x: Tensor) -> Tensor:
        """What a rule returned for the call's pairs, as ``[B, H, E]``."""
        shape = self.shape
        if self.pairs.is_dense:
            return x.expand(shape.batch, shape.num_heads, shape.num_queries, shape.num_keys).flatten(2)
        return x.expand(shape.batch, shape.num_heads, self.query.shape[0])

    def listing(self, query: Tensor, key: Tensor) -> Pairs:
        """Index tensors of a list of pairs."""
        pairs = PairList(query, key, self.shape.num_queries, self.shape.num_keys)
        return Pairs(self.shape, self.pairs.q_positions, self.pairs.k_positions, pairs)

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Random q, k and v."""
        shape, random = self.shape, torch.Generator().manual_seed(self.shape.num_queries + 100 * self.shape.num_keys)
        sizes = (
            (shape.batch, shape.num_heads, shape.num_queries, shape.head_dim),
            (shape.batch, shape.num_heads, shape.num_keys, shape.head_dim),
            (shape.batch, shape.num_heads, shape.num_keys, shape.value_dim or shape.head_dim),
        )
        return [torch.randn(s, generator=random, dtype=torch.float64).to(dtype) for s in sizes]


def call(
    mask: Mask, num_queries: int, num_keys: int, batch: int, num_heads: int, head_dim: int = 4, shift: int = 0
) -> Call:
    """A call of these sizes.

    Raises:
        TypeError: If a size is no integer.
        ValueError: If it is negative, or there is no batch or head.
    """
    for name, size, least in (
        ("sizes", num_queries, 0), ("sizes", num_keys, 0), ("batch", batch, 1), ("num_heads", num_heads, 1),
    ):  # fmt: skip
        check_count(name, size, "give an integer")
        if size < least:
            raise ValueError(f"{name} holds {size}; it must be at least {least}")
    offset = 0 if mask.counts_from_zero else num_keys - num_queries
    graph = mask.graph
    shape = Shape(
        batch, num_heads, num_heads, num_queries, num_keys, head_dim, head_dim, offset,
        None if graph is None else graph.num_edges, torch.device("cpu"),
    )  # fmt: skip
    q_positions = torch.arange(num_queries)[None] + offset + shift
    k_positions = torch.arange(num_keys)[None] + shift
    if graph is None:
        query, key = all_pairs(num_queries, num_keys)
        return Call(shape, mask, query, key, Pairs(shape, q_positions, k_positions))
    key, query = graph.edge_index.long()
    listed = PairList(query, key, num_queries, num_keys, edges=True)
    return Call(shape, mask, query, key, Pairs(shape, q_positions, k_positions, listed))


def fitting(check: Callable[[Shape], None], calls: Sequence[Call], name: str) -> list[Call]:
    """The calls whose shape is taken.

    Raises:
        ValueError: If none is; the last refusal is its cause.
    """
    taken, refusal = [], None
    for one in calls:
        try:
            one.mask.check(one.shape)
            check(one.shape)
            taken.append(one)
        except ValueError as error:
            refusal = error
    if not taken:
        raise ValueError(
            f"{name} takes none of the sizes that were tried ({', '.join(one.sizes for one in calls)}): give sizes, "
            f"batch and num_heads that it takes"
        ) from refusal
    return taken


def able(backends: Sequence[str] | None, q: Tensor, k: Tensor, v: Tensor, **options: object) -> list[str]:
    """Of these back ends those that do not decline a call; by default of all that may be chosen unnamed."""
    reasons = explain(q, k, v, **options).reasons  # type: ignore[arg-type]
    if backends is None:  # flex asks each rule pair by pair, which takes a hundred times as long
        backends = [name for name in BACKENDS if name != "flex"]
    return [name for name in backends if not reasons[find(name).name]]
