"""Vectors of pairs, lowered to tensors: stored, looked up in a table, or projected from features.

They are added to the key or the value that a pair brings. Back ends ask for them in the form that suits: at every
pair (:meth:`Vectors.at_pairs`), as tensors that a fused kernel reads in place (:meth:`Vectors.operands`), or, where all
pairs are a dense table, already multiplied (:meth:`Vectors.scores`, :meth:`Vectors.mix`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Operands:
    """What a fused kernel reads: r_p = rows[code_p or p] + weight features_p, each part absent where it is None.

    Args:
        rows: ``[R, 1 | Hkv, D]``.
        code: ``[1 | B, pairs]`` integers, which row a pair reads; None: the row of its own number.
        features: ``[pairs, F]``.
        weight: ``[Hkv, D, F]``.
    """

    rows: Tensor | None = None
    code: Tensor | None = None
    features: Tensor | None = None
    weight: Tensor | None = None


NO_VECTORS = Operands()

FORMED = 2**21
"""Numbers up to which projected features are formed for every edge: one product of matrices is then quicker than to
project inside of a kernel."""


class Vectors(ABC):
    """A vector r_p for each pair p and key head.

    Attributes:
        projects: Whether a fused kernel gets features and a weight, by which queries may be multiplied.
        forms: Whether :meth:`operands` multiplies what is held for an edge.
    """

    projects = False
    forms = False

    @abstractmethod
    def at_pairs(self) -> Tensor:
        """All of them: ``[1 | B, 1 | Hkv, E, D]``, of a dense problem ``[1 | B, 1 | Hkv, Nq, Nk, D]``."""

    @abstractmethod
    def operands(self) -> Operands:
        """The same as a fused kernel reads them."""

    @abstractmethod
    def contracted(self, att: Tensor) -> Vectors:
        """<att, r_p> for ``att [Hq, D]``: vectors of one coordinate for each query head."""

    def silenced(self, unseen: Tensor) -> Vectors:
        """The same with 0 in place of what is held for pairs ``[E, 1 | Hkv]`` that nobody may see."""
        return self

    def scores(self, score: Callable[[Tensor, Tensor], Tensor], q: Tensor) -> Tensor:
        """The part ``[B, Hq, Nq, Nk]`` that the vectors have in a score which is linear in the key.

        Args:
            score: The score of ``[B, Hq, Nq, 1, D]`` and what broadcasts with it.
            q: ``[B, Hq, Nq, D]``.
        """
        raise ValueError("vectors of edges have no dense form")

    def mix(self, weights: Tensor) -> Tensor:
        """sum_j weights_ij r_ij, ``[B, Hq, Nq, Dv]``, of a dense problem's weights ``[B, Hq, Nq, Nk]``."""
        raise ValueError("vectors of edges have no dense form")

    def __add__(self, other: Vectors) -> Vectors:
        return Joint(self, other)


@dataclass(frozen=True, eq=False)
class Stored(Vectors):
    """A row an edge.

    Args:
        rows: ``[E, Hkv, D]``.
    """

    rows: Tensor

    def at_pairs(self) -> Tensor:
        return self.rows.transpose(0, 1)[None]

    def operands(self) -> Operands:
        return Operands(rows=self.rows)

    def contracted(self, att: Tensor) -> Vectors:
        return Stored(_contracted(self.rows, att))

    def silenced(self, unseen: Tensor) -> Vectors:
        return Stored(self.rows.masked_fill(unseen[..., None], 0.0))


@dataclass(frozen=True, eq=False)
class Looked(Vectors):
    """Rows of a table that pairs share: nothing of size pairs x D.

    Args:
        table: ``[K, 1 | Hkv, D]``.
        code: ``[1 | B, 1, pairs]`` integers, pairs being E, or Nq, Nk.
    """

    table: Tensor
    code: Tensor

    def at_pairs(self) -> Tensor:
        code = self.code[:, 0]
        rows = self.table.index_select(0, code.flatten())
        return rows.reshape(*code.shape, *rows.shape[1:]).movedim(-2, 1)

    def operands(self) -> Operands:
        return Operands(rows=self.table, code=self.code[:, 0])

    def contracted(self, att: Tensor) -> Vectors:
        return Looked(_contracted(self.table, att), self.code)

    def scores(self, score: Callable[[Tensor, Tensor], Tensor], q: Tensor) -> Tensor:
        every = score(q[:, :, :, None], self._per_query_head(q.shape[1])[None, :, None])  # [B, Hq, Nq, K]
        return every.gather(3, self.code.expand(*q.shape[:3], -1))

    def mix(self, weights: Tensor) -> Tensor:
        code = self.code.expand(weights.shape)
        sums = weights.new_zeros(*weights.shape[:3], self.table.shape[0]).scatter_add(3, code, weights)
        return sums @ self._per_query_head(weights.shape[1])

    def _per_query_head(self, heads: int) -> Tensor:
        """``[1 | Hq, K, D]``."""
        table = self.table.transpose(0, 1)
        return table if table.shape[0] == 1 else table.repeat_interleave(heads // table.shape[0], dim=0)


@dataclass(frozen=True, eq=False)
class Projected(Vectors):
    """A linear map of an edge's features: nothing of size E x Hkv x D, unless that is small.

    Args:
        features: ``[E, F]``.
        weight: ``[Hkv, D, F]``.
    """

    features: Tensor
    weight: Tensor

    @property
    def projects(self) -> bool:  # type: ignore[override]
        heads, size, _ = self.weight.shape
        # Compiled code keeps its sizes open.
        return torch.compiler.is_compiling() or self.features.shape[0] * heads * size > FORMED

    @property
    def forms(self) -> bool:  # type: ignore[override]
        return not self.projects

    def at_pairs(self) -> Tensor:
        return self._rows().transpose(0, 1)[None]

    def operands(self) -> Operands:
        if self.projects:
            return Operands(features=self.features, weight=self.weight)
        return Operands(rows=self._rows())

    def _rows(self) -> Tensor:
        """``[E, Hkv, D]``."""
        heads, size, _ = self.weight.shape
        return (self.features @ self.weight.flatten(0, 1).t()).view(self.features.shape[0], heads, size)

    def contracted(self, att: Tensor) -> Vectors:
        weight = _contracted(self.weight.permute(2, 0, 1), att)[..., 0]  # [F, Hq]
        return Stored((self.features @ weight)[..., None])

    def silenced(self, unseen: Tensor) -> Vectors:
        return replace(self, features=self.features.masked_fill(unseen.all(1, keepdim=True), 0.0))


@dataclass(frozen=True, eq=False)
class Joint(Vectors):
    """A sum of two; a fused kernel reads both in place if one is projected and the other is not, else row by row."""

    first: Vectors
    second: Vectors

    @property
    def projects(self) -> bool:  # type: ignore[override]
        return self.first.projects or self.second.projects

    @property
    def forms(self) -> bool:  # type: ignore[override]
        return self.first.forms or self.second.forms or (self.first.projects and self.second.projects)

    def at_pairs(self) -> Tensor:
        return self.first.at_pairs() + self.second.at_pairs()

    def operands(self) -> Operands:
        a, b = self.first.operands(), self.second.operands()
        if a.rows is None and b.features is None:
            return replace(b, features=a.features, weight=a.weight)
        if b.rows is None and a.features is None:
            return replace(a, features=b.features, weight=b.weight)
        rows = self.at_pairs().movedim(1, 2)  # [1 | B, E, 1 | Hkv, D]
        if rows.shape[0] == 1:
            return Operands(rows=rows[0])
        code = torch.arange(rows.shape[0] * rows.shape[1], device=rows.device)
        return Operands(rows=rows.flatten(0, 1), code=code.reshape(rows.shape[:2]))

    def contracted(self, att: Tensor) -> Vectors:
        return Joint(self.first.contracted(att), self.second.contracted(att))

    def silenced(self, unseen: Tensor) -> Vectors:
        return Joint(self.first.silenced(unseen), self.second.silenced(unseen))

    def scores(self, score: Callable[[Tensor, Tensor], Tensor], q: Tensor) -> Tensor:
        return self.first.scores(score, q) + self.second.scores(score, q)

    def mix(self, weights: Tensor) -> Tensor:
        return self.first.mix(weights) + self.second.mix(weights)


def _contracted(rows: Tensor, att: Tensor) -> Tensor:
    """sum_d att[h, d] rows[n, h // group, d] for rows ``[N, 1 | Hkv, D]``: ``[N, Hq, 1]``."""
    heads = rows.shape[1]
    group = att.shape[0] // max(heads, 1)
    products = torch.einsum("nkd,kgd->nkg", rows, att.reshape(heads, group, att.shape[1])).flatten(1)
    return products.contiguous()[..., None]  # a row's heads next to each other, as kernels read them together
