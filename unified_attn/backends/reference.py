"""Plain and dense: the specification that every other back end is held to."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.backends.base import Backend, normalise, row_max
from unified_attn.problem import Lowered, Problem


class Reference(Backend):
    """softmax(logits) v over a dense table of logits; on a graph, the edges are the keys.

    Runs everything and is differentiable to any order. Cost: O(Nq Nk) memory, on a graph O(Nq E).
    """

    def unsupported(self, problem: Problem) -> list[str]:
        return []

    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        low = problem.listed() if problem.has_edges else problem.dense()
        weights, lse = dense_weights(low)
        factors = low.dropout()
        if factors is not None:
            weights = weights * (factors[:, :, None] if problem.has_edges else factors)
        return low.mix(weights), lse


def dense_weights(low: Lowered) -> tuple[Tensor, Tensor]:
    """Softmax over a table of logits, ``[B, Hq, Nq, Nk]`` or, of a list, ``[B, Hq, Nq, E]``; lse ``[B, Hq, Nq]``."""
    logits = low.logits()
    if not low.pairs.is_dense:  # an edge is a key of its own target alone
        own = low.pairs.query[0] == torch.arange(low.pairs.shape.num_queries, device=logits.device)[:, None]
        logits = torch.where(own, logits[:, :, None], -torch.inf)
    shift = row_max(logits)
    exp = (logits - shift).exp()
    weights, lse = normalise(exp, exp.sum(-1, keepdim=True), shift)
    return weights, lse[..., 0]
