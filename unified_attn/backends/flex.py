"""Torch's ``flex_attention``: masks and biases as functions of one pair, which torch calls for all of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unified_attn.backends.base import Backend, dot_reasons
from unified_attn.biases import Bias, DenseBias, NoBias
from unified_attn.pairs import Pairs
from unified_attn.problem import Problem, is_tame, silence
from unified_attn.strips import Cut, strips
from unified_attn.tiles import Tile


class Flex(Backend):
    """``torch.nn.attention.flex_attention``: the forward pass alone, on CPU.

    Rules are asked for one pair at a time; torch compiles them with its kernel, once for all lengths, and computes the
    blocks of 128 x 128 pairs that hold a visible one. The first call of a kind of mask, bias and score, with its number
    of heads and sizes of a head, takes 10 to 40 seconds, and a second length may take as long again.

    Uncompiled, torch forms all logits. So are run:

    - below 128 queries or keys, where a compilation would cost more than it saves;
    - a call that asks for the lse, or whose score has a sink, and float64: torch compiles neither on CPU.

    A check of rules against another implementation, and never chosen by itself.
    """

    def unsupported(self, problem: Problem) -> list[str]:
        reasons = dot_reasons(problem)
        shape = problem.shape
        if problem.mask.counts_from_zero and not problem.has_edges:
            reasons.append("a graph takes part in the mask: its pairs are looked up in a list, not asked one by one")
        if problem.dropout_p > 0.0:
            reasons.append("flex_attention has no dropout")
        if 0 in (shape.batch, shape.num_queries, shape.num_keys, shape.head_dim, problem.v.shape[3]):
            reasons.append("there is nothing in one of the dimensions, and flex_attention asks for a first pair")
        elif not reasons and torch.is_grad_enabled() and _learns(problem):
            reasons.append("gradients are asked for (q, k, v or bias), and flex_attention has none on CPU")
        if torch.compiler.is_compiling():
            reasons.append("the rules are compiled apart, once for all lengths, and not inside of other compiled code")
        return reasons

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        from unified_attn.kernels.flex_compiled import compiled, uncompiled

        with torch.no_grad():
            _first_value(problem)  # what is wrong with a rule is said before a compiler says it
            q, k, v = _cleaned(problem)
            asked = replace(problem, bias=_by_pair(problem))
            shape = problem.shape
            if min(shape.num_queries, shape.num_keys) < SMALL or problem.needs_lse or problem.dtype == torch.float64:
                return uncompiled(asked, q, k, v)
            return compiled(asked, q, k, v), None


SMALL = 128
"""Queries or keys below which nothing is compiled."""


def _cleaned(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, turned; rows that take part in no visible pair zeroed, unless they can do no harm."""
    q, k, v = problem.turned()
    if all(is_tame(x) for x in (q, k, v)):
        return q, k, v
    shape = problem.shape
    queries, keys = (
        torch.zeros(shape.batch, shape.num_heads, size, dtype=torch.bool)
        for size in (shape.num_queries, shape.num_keys)
    )
    for strip in strips(problem, Cut()):
        add = problem.added(strip.tile(problem))
        visible = torch.ones(1, 1, 1, 1, dtype=torch.bool) if add is None else add != -torch.inf
        visible = visible.expand(-1, -1, strip.height, strip.width)
        queries[:, :, strip.rows] |= visible.any(3)
        seen = torch.arange(strip.keys.start, strip.keys.stop) if isinstance(strip.keys, range) else strip.keys
        keys[:, :, seen] |= visible.any(2)
    return silence(q, k, v, queries, keys)


def _first_value(problem: Problem) -> Tensor | None:
    """What is added to the logit of the first pair."""
    first = torch.zeros(1, dtype=torch.int64, device=problem.q.device)
    return problem.added(Tile(problem.shape, problem.q_positions, problem.k_positions, rows=first, columns=first))


def _learns(problem: Problem) -> bool:
    """Whether q, k, v or anything in the bias asks for a gradient."""
    if any(x.requires_grad for x in (problem.q, problem.k, problem.v, *problem.bias.parameters())):
        return True
    add = _first_value(problem)
    return add is not None and add.requires_grad  # a tensor that a rule captured


def _by_pair(problem: Problem) -> Bias:
    """The bias with tables in place of terms that are no rule for one pair."""
    pairs = Pairs(problem.shape, problem.q_positions, problem.k_positions)
    bias: Bias = NoBias()
    for term in problem.bias.terms:
        table = None if type(term).on is Bias.on else term.on(pairs)
        bias = bias + (term if table is None else DenseBias(table))
    return bias
