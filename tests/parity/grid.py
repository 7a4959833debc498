"""The sizes and positions of one case, its random numbers, and the tensors of it that get gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Grid:
    """Index tensors that broadcast to [B, H, Nq, Nk]: b, h, rows i and j, positions at_i and at_j."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    dtype: torch.dtype
    random: torch.Generator
    q_positions: Tensor  # [1 or B, Nq]
    k_positions: Tensor  # [1 or B, Nk]

    def __post_init__(self) -> None:
        self.b = torch.arange(self.batch)[:, None, None, None]
        self.h = torch.arange(self.heads)[None, :, None, None]
        self.i = torch.arange(self.queries)[None, None, :, None]
        self.j = torch.arange(self.keys)[None, None, None, :]
        self.at_i = self.q_positions[:, None, :, None]
        self.at_j = self.k_positions[:, None, None, :]
        self.given: dict[str, Tensor] = {}

    @property
    def full(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.queries, self.keys

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.random)

    def coin(self, *shape: int, chance: float = 0.7) -> Tensor:
        return torch.rand(shape, generator=self.random) < chance

    def leaf(self, kind: str, *shape: int, hidden: Tensor | None = None) -> tuple[str, Tensor]:
        """A new tensor that gets a gradient, and its name. ``hidden`` is filled with -inf and the lowest number."""
        values = torch.randn(shape, generator=self.random, dtype=torch.float64)
        if hidden is not None:
            low = torch.tensor([-torch.inf, torch.finfo(self.dtype).min], dtype=torch.float64)
            lowest = low[self.integers(2, *shape)]
            values = torch.where(hidden, lowest, values)
        name = kind
        while name in self.given:
            name += "'"
        self.given[name] = values.to(self.dtype).requires_grad_()
        return name, self.given[name]
