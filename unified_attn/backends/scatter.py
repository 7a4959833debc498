"""Edge tensors and segment reductions: what graph libraries do, and differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.backends.base import Backend, list_reasons, normalise
from unified_attn.kernels.segment import segment_max, segment_sum, torch_scatter
from unified_attn.problem import Lowered, Problem


class Scatter(Backend):
    """Gathers queries, keys and values for each listed pair, then reduces over the pairs of a query.

    Takes any score. Cost: O(E Hq D) memory.
    """

    def unsupported(self, problem: Problem) -> list[str]:
        return list_reasons(problem)

    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        low = problem.listed()
        weights, lse, order = _softmax(low, low.logits())
        factors = low.dropout()
        if factors is not None:
            weights = weights * _pairs_first(factors.expand(-1, -1, order.shape[0]), order)
        messages = weights[..., None] * _pairs_first(low.values(), order)
        return segment_sum(messages, *_structure(low)).permute(1, 2, 0, 3), lse.permute(1, 2, 0)

    def note(self) -> str:
        return torch_scatter()[1]


def edge_weights(low: Lowered) -> tuple[Tensor, Tensor]:
    """Softmax over the pairs of a query, ``[B, Hq, E]`` in the list's order, 0 if hidden; lse ``[B, Hq, Nq]``."""
    weights, lse, order = _softmax(low, low.logits())
    return torch.zeros_like(weights).index_copy(0, order, weights).permute(1, 2, 0), lse.permute(1, 2, 0)


def _structure(low: Lowered) -> tuple[Tensor, Tensor]:
    """Offsets of the rows, and the row of each pair in sorted order."""
    rows = low.rows()
    return rows.indptr[0], low.pairs.query.flatten().index_select(0, rows.edge.long())


def _pairs_first(x: Tensor, order: Tensor) -> Tensor:
    """``[B, H, E, ...]`` to ``[E, B, H, ...]`` in sorted order, as segment reductions want it."""
    return x.movedim(2, 0).index_select(0, order)


def _softmax(low: Lowered, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights ``[E, B, Hq]`` in sorted order, lse ``[Nq, B, Hq]``, and that order ``[E]``."""
    indptr, row = _structure(low)
    order = low.rows().edge.long()
    logits = _pairs_first(logits, order)
    top = segment_max(logits, indptr, row)
    shift = torch.where(top == -torch.inf, 0.0, top)
    exp = (logits - shift.index_select(0, row)).exp()
    total = segment_sum(exp, indptr, row)
    _, lse = normalise(total, total, shift)
    safe = torch.where(total == 0, 1.0, total)
    return exp / safe.index_select(0, row), lse, order
