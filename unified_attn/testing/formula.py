"""Attention from its definition, over entries: a key as one query sees it. Plain torch, nothing of the library."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax(
    logits: Tensor, visible: Tensor, query: Tensor, values: Tensor, num_queries: int, sink: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """sum_e softmax_e(logits) v_e over the visible entries of each query, and the log of the sum of exponentials.

    Args:
        logits: ``[B, H, E]``; of hidden entries they may be anything.
        visible: ``[B, H, E]`` bool.
        query: ``[E]``, the query of each entry.
        values: ``[B, H, E, Dv]``; the same.
        num_queries: Nq.
        sink: ``[H]``, one more logit of every query, or None.

    Returns:
        Output ``[B, H, Nq, Dv]``, 0 for a query without an entry, and lse ``[B, H, Nq]``, there -inf.

    Example:
        >>> out, lse = softmax(torch.zeros(1, 1, 2), torch.tensor([[[True, False]]]), torch.tensor([0, 1]),
        ...                    torch.tensor([3.0, torch.nan]).reshape(1, 1, 2, 1), 2)
        >>> out.flatten(), lse.flatten()
        (tensor([3., 0.]), tensor([0., -inf]))
    """
    batch, heads, _ = logits.shape
    logits = torch.where(visible, logits, 0.0)
    values = torch.where(visible[..., None], values, 0.0)
    # Each row by its own greatest logit: a loop, since what is checked is fast and this has to be plain.
    out = [torch.zeros(batch, heads, num_queries, values.shape[-1], dtype=values.dtype)]
    lse = []
    for i in range(num_queries):
        own = (query == i).nonzero()[:, 0]
        row, seen = logits[:, :, own], visible[:, :, own]
        if sink is not None:
            row = torch.cat([row, sink[None, :, None].expand(batch, -1, 1)], -1)
            seen = torch.cat([seen, torch.ones(batch, heads, 1, dtype=torch.bool)], -1)
        top = torch.where(seen, row, -torch.inf).detach()
        top = top.amax(-1, keepdim=True) if top.shape[-1] else top.new_full((batch, heads, 1), -torch.inf)
        top = torch.where(top == -torch.inf, 0.0, top)
        exp = (row - top).exp() * seen
        total = exp.sum(-1, keepdim=True)
        some = total > 0
        safe = torch.where(some, total, 1.0)
        weights = (exp / safe)[..., : own.shape[0]]
        out.append((weights[..., None] * values[:, :, own]).sum(2, keepdim=True))
        lse.append(torch.where(some, safe.log() + top, -torch.inf))
    return torch.cat(out[1:], 2) if num_queries else out[0], torch.cat(lse, 2) if lse else logits[:, :, :0]


def all_pairs(num_queries: int, num_keys: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of all pairs, ``[Nq * Nk]`` each, row by row."""
    return torch.arange(num_queries).repeat_interleave(num_keys), torch.arange(num_keys).repeat(num_queries)


def per_query_head(x: Tensor, num_heads: int) -> Tensor:
    """``[B, Hkv, ...]`` as ``[B, Hq, ...]``: query head h reads key head ``h // (Hq // Hkv)``."""
    group = num_heads // x.shape[1]
    return x[:, [h // group for h in range(num_heads)]]
