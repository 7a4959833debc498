"""Torch's ``flex_attention``: masks and biases as functions of one pair, which torch calls for all of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unified_attn.backends.base import Backend, dot_reasons
from unified_attn.biases import Bias, DenseBias, NoBias
from unified_attn.pairs import Pairs
from unified_attn.problem import Problem
from unified_attn.tiles import Tile


class Flex(Backend):
    """``torch.nn.attention.flex_attention`` without compilation: the forward pass alone, on CPU.

    Rules are asked for one pair at a time, under ``vmap``; a bias held as a table is looked up. Uncompiled as here,
    torch forms the logits: it is a check of rules against another implementation, and never chosen by itself.
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
            reasons.append("the rules are made anew in each call, and would be compiled anew")
        return reasons

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        low = problem.dense()
        shape = problem.shape
        asked = replace(problem, bias=_by_pair(problem))

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            score = problem.score.finish(score)
            add = asked.added_by_bias(Point.of(asked, b, h, i, j))
            return score if add is None else score + add

        def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return asked.mask.on(Point.of(asked, b, h, i, j))

        block_mask = None
        if not problem.hides_nothing:
            sizes = shape.batch, shape.num_heads, shape.num_queries, shape.num_keys
            block_mask = create_block_mask(mask_mod, *sizes, device=str(shape.device))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            out, aux = flex_attention(
                low.q.detach().contiguous(),
                low.k.detach().contiguous(),
                low.v.detach().contiguous(),
                score_mod=score_mod,
                block_mask=block_mask,
                scale=problem.scale,
                enable_gqa=shape.num_heads != shape.num_kv_heads,
                return_aux=AuxRequest(lse=True),
            )
        return out, aux.lse


def _learns(problem: Problem) -> bool:
    """Whether q, k, v or anything in the bias asks for a gradient."""
    if any(x.requires_grad for x in (problem.q, problem.k, problem.v, *problem.bias.parameters())):
        return True
    first = torch.zeros(1, dtype=torch.int64, device=problem.q.device)
    add = problem.added(Tile(problem.shape, problem.q_positions, problem.k_positions, rows=first, columns=first))
    return add is not None and add.requires_grad  # a tensor that a rule captured


def _by_pair(problem: Problem) -> Bias:
    """The bias with tables in place of terms that are no rule for one pair."""
    pairs = Pairs(problem.shape, problem.q_positions, problem.k_positions)
    bias: Bias = NoBias()
    for term in problem.bias.terms:
        table = None if type(term).on is Bias.on else term.on(pairs)
        bias = bias + (term if table is None else DenseBias(table))
    return bias


@dataclass(frozen=True, eq=False, kw_only=True)
class Point(Pairs):
    """One pair: index tensors without dimensions."""

    at: tuple[Tensor, Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, problem: Problem, *at: Tensor) -> Point:
        """The pair of batch entry, head, query and key."""
        b, h, i, j = at
        return cls(problem.shape, problem.q_positions, problem.k_positions, at=(b, h, i, j))

    @property
    def is_dense(self) -> bool:
        return False

    @property
    def batch(self) -> Tensor:
        return self.at[0]

    @property
    def head(self) -> Tensor:
        return self.at[1]

    @property
    def query(self) -> Tensor:
        return self.at[2]

    @property
    def key(self) -> Tensor:
        return self.at[3]

    @property
    def query_position(self) -> Tensor:
        return self.gather(self.q_positions[:, None, :, None])

    @property
    def key_position(self) -> Tensor:
        return self.gather(self.k_positions[:, None, None, :])

    def gather(self, table: Tensor) -> Tensor:
        table = table.reshape(*[1] * (4 - table.dim()), *table.shape)
        return table[
            tuple(n if size != 1 else torch.zeros_like(n) for n, size in zip(self.at, table.shape, strict=True))
        ]
