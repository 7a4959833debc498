"""What the tests of conventions and cases share: every way to run a call, and an oracle that shares no code with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unified_attn import DenseMask, Graph, UnsupportedError, attention, explain

DENSE = ("reference", "sdpa", "tiled")
"""Back ends that take a rule as it is."""

WAYS = (*DENSE, "reference on edges", "scatter", "csr")
"""Every back end runs every rule: those that need a list of pairs get the complete graph beside the rule."""

ON_EDGES = ("reference", "scatter", "csr")
"""Back ends that run a graph."""

INF = float("inf")


def run(way: str, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, *, rows: bool = False, **options: Any) -> Tensor:
    """The call in one of the ways. With `rows` the positions stay away (the mask counts rows)."""
    if way in DENSE:
        if reasons := explain(q, k, v, mask=mask, **options).reasons[way]:
            with pytest.raises(UnsupportedError, match=re.escape(reasons[0])):
                attention(q, k, v, mask=mask, backend=way, **options)
            way = "reference"  # stands in for what says that it cannot
        return attention(q, k, v, mask=mask, backend=way, **options)
    backend = way.removesuffix(" on edges")
    queries, keys = q.shape[2], k.shape[2]
    pairs: Any = complete(queries, keys)
    if mask is not None:
        pairs = pairs & (DenseMask(mask) if isinstance(mask, Tensor) else mask)
    if queries != keys and not rows:  # a graph counts both sides from 0; without one the queries are the last rows
        options.setdefault("q_positions", torch.arange(keys - queries, keys))
    return attention(q, k, v, mask=pairs, backend=backend, **options)


def fresh(code: str, *paths: Path, **variables: str) -> str:
    """What a fresh interpreter prints as it runs `code`, with `paths` to search first; warnings are errors."""
    search = os.pathsep.join(map(str, [*paths, Path(__file__).resolve().parents[2]]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": search, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def complete(queries: int, keys: int) -> Graph:
    """Every key is a neighbour of every query, query by query."""
    target, source = torch.meshgrid(torch.arange(queries), torch.arange(keys), indexing="ij")
    return Graph(torch.stack([source.flatten(), target.flatten()]))


def edges(*pairs: tuple[int, int]) -> Tensor:
    """`[2, E]` from (source, target) pairs."""
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()


def identity(keys: int) -> Tensor:
    """Values `[1, 1, Nk, Dv]` that show the weights in the first Nk columns; few widths, so few kernels to compile."""
    return torch.eye(keys, next(width for width in (4, 8, 64) if width >= keys))[None, None]


def weights(
    way: str, queries: int, keys: int, mask: Any = None, *, heads: int = 1, batch: int = 1, **options: Any
) -> Tensor:
    """The attention rows `[B, H, Nq, Nk]` for q = 0, read off the output: the values are the identity."""
    q = torch.zeros(batch, heads, queries, 4)
    v = identity(keys).expand(batch, heads, -1, -1)
    return run(way, q, torch.zeros(batch, heads, keys, 4), v, mask, **options)[..., :keys]


def graph_weights(backend: str, edge_index: Tensor, nodes: int, **options: Any) -> Tensor:
    """The attention rows `[N, N]` of one head on a graph for q = 0."""
    zero = torch.zeros(1, 1, nodes, 4)
    mask = options.pop("mask", None)
    graph = Graph(edge_index)
    mask = graph if mask is None else graph & mask
    return attention(zero, zero, identity(nodes), mask=mask, backend=backend, **options)[0, 0, :, :nodes]


def formula(
    q: Tensor, k: Tensor, v: Tensor, allowed: Any = None, bias: Any = None, scale: float | None = None
) -> Tensor:
    """Attention written out; rows without an allowed key are made safe before the softmax and zeroed after it."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        logits = logits + bias
    if allowed is None:
        return torch.einsum("bhij,bhjd->bhid", logits.softmax(-1), v)
    allowed = allowed.expand(logits.shape)
    some = allowed.any(-1, keepdim=True)
    p = torch.where(some, logits.masked_fill(~allowed & some, -INF), 0.0).softmax(-1) * (allowed & some)
    return torch.einsum("bhij,bhjd->bhid", p, v)


def inputs(
    queries: int = 5, keys: int | None = None, *, batch: int = 2, heads: int = 2, kv_heads: int | None = None,
    dim: int = 4, value_dim: int | None = None, dtype: torch.dtype = torch.float64, seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Random q, k and v that ask for gradients."""
    keys = queries if keys is None else keys
    kv_heads = heads if kv_heads is None else kv_heads
    g = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64).to(dtype).requires_grad_()

    return (
        draw(batch, heads, queries, dim),
        draw(batch, kv_heads, keys, dim),
        draw(batch, kv_heads, keys, dim if value_dim is None else value_dim),
    )


def gradients(out: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a sum of the output in which every entry counts differently."""
    wave = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).reshape(out.shape)
    return torch.autograd.grad((out * wave).sum(), leaves, retain_graph=True)


def assert_same(got: Tensor, want: Tensor, *leaves: Tensor, atol: float | None = None) -> None:
    """Equal outputs, and equal gradients of the leaves."""
    exact = 1e-10 if want.dtype == torch.float64 else 2e-6
    tolerance = {"rtol": 0.0 if atol is not None else exact, "atol": exact if atol is None else atol}
    torch.testing.assert_close(got, want, **tolerance)
    if leaves:
        for a, b in zip(gradients(got, *leaves), gradients(want, *leaves), strict=True):
            torch.testing.assert_close(a, b, **tolerance)


def close(got: Tensor, want: Any, atol: float = 1e-4) -> None:
    """Equal to numbers worked out by hand, which have four digits."""
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=got.dtype).expand(got.shape), rtol=0.0, atol=atol)
