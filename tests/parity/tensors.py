"""Small random tensors, and what the tests of laws ask of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

LISTED = pytest.mark.parametrize("backend", ["reference", "scatter", "csr"])  # those that run graphs and windows


def made(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes]


def qkv(batch: int = 2, heads: int = 4, kv_heads: int = 2, queries: int = 7, keys: int = 7) -> list[Tensor]:
    return made((batch, heads, queries, 4), (batch, kv_heads, keys, 4), (batch, kv_heads, keys, 7))


def derivatives(out: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    weight = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).reshape(out.shape).cos()
    return torch.autograd.grad((out * weight).sum(), tensors, retain_graph=True)


def same(a: object, b: object) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def some_edges(keys: int = 7, queries: int = 7, count: int = 20, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    # Node 0 is nobody's target.
    return torch.stack(
        [torch.randint(keys, (count,), generator=random), torch.randint(1, queries, (count,), generator=random)]
    )
