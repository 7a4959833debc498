"""Block-sparse attention: blocks of queries beside the keys that they may see, each on torch's own kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unified_attn.backends.base import Backend, cap_reasons, dot_reasons, refuse_tangents
from unified_attn.kernels.flash import flash
from unified_attn.problem import Problem, dropout, silence
from unified_attn.tiles import Strip, strips


class Tiled(Backend):
    """Any rule mask and additive bias over dot products, at any length: no table of all pairs, forward or backward.

    A window's or causal mask's tiles are known in closed form, and those that differ by a shift alone are computed
    together. Masks and biases are asked tile by tile, again in the backward pass. No second derivative. Cost:
    O(pairs in tiles x D) time, O(N D) memory; learned biases that are not relative add
    O(pairs in tiles).
    """

    def unsupported(self, problem: Problem) -> list[str]:
        reasons = dot_reasons(problem) + cap_reasons(problem)
        if torch.compiler.is_compiling():
            reasons.append("a loop over tiles would be compiled anew for each length")
        return reasons

    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        q, k, v = problem.turned()
        plan = Plan(problem)
        learned = plan.learned_tables()
        refuse_tangents(self.name, q, k, v, *learned)
        out, lse = _Tiles.apply(plan, q, k, v, *learned)  # type: ignore[no-untyped-call]  # torch's own
        return out, lse


class Plan:
    """The strips of a problem and their tables of additive values.

    Args:
        problem: The call.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.shared = problem.relative and problem.dropout_p == 0.0
        self.strips = strips(problem, merged=self.shared)
        self.seed = problem.seed()
        self.differentiates = torch.is_grad_enabled()  # asked here: inside of a Function it never is
        # Strips of several tiles hold a table that depends on j - i alone: the same for all of them.
        numbers: dict[object, int] = {}
        keys = [(strip.height, strip.width) if strip.tiles > 1 else n for n, strip in enumerate(self.strips)]
        self.numbers = [numbers.setdefault(key, len(numbers)) for key in keys]

    def table(self, strip: Strip) -> Tensor | None:
        """What is added to the logits of a strip, ``[1 | B, 1 | Hq, M | 1, W | 1]``."""
        table = self.problem.added(strip.tile(self.problem))
        return table if table is None or strip.tiles == 1 else table[:1]  # relative: the same in every batch entry

    def learned_tables(self) -> list[Tensor]:
        """One table a number, if they have gradients; else none: they are made where they are needed, and dropped."""
        if not (self.differentiates and self.strips and _learns(self.table(self.strips[0]))):
            return []
        places = dict(zip(self.numbers, self.strips, strict=True))
        tables = [self.table(places[number]) for number in range(len(places))]
        return [table for table in tables if table is not None]

    def parts(self, learned: tuple[Tensor, ...]) -> Iterator[tuple[Strip, int, Tensor | None, Tensor | None]]:
        """Each strip with its number, its table and its factors of dropout."""
        made: tuple[int, Tensor | None] = (-1, None)
        for number, strip in zip(self.numbers, self.strips, strict=True):
            if learned:
                made = number, learned[number]
            elif made[0] != number:
                with torch.set_grad_enabled(self.differentiates):
                    made = number, self.table(strip)
                if _learns(made[1]):
                    raise ValueError(
                        f"{self.problem.bias!r} has a gradient at some pairs and none at others: let what it captures "
                        f"take part at all of them, or use backend='reference'"
                    )
            factors = None
            if self.seed is not None:
                tile = strip.tile(self.problem)
                factors = dropout(tile, self.problem.dropout_p, self.seed, self.problem.dtype).expand(tile.sizes)
            yield strip, number, made[1], factors


class _Tiles(torch.autograd.Function):
    """All strips, one after the other; the backward pass visits them again, so that no gradient is cut up."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        lse = q.new_full(q.shape[:3], -torch.inf)
        tame = all(is_tame(x) for x in (q, k, v))
        for strip, _, table, factors in plan.parts(learned):
            inputs = _inputs(strip, q, k, v, table, tame)
            part, part_lse = flash(*inputs, table, factors, plan.problem.scale, False, "tiled")
            strip.write_queries(out, part)
            strip.write_queries(lse, part_lse)
        ctx.plan, ctx.tame = plan, tame
        ctx.save_for_backward(q, k, v, out, lse, *learned)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g_out, g_lse = grads
        q, k, v, out, lse, *learned = ctx.saved_tensors
        g_out = torch.zeros_like(out) if g_out is None else g_out
        d_q, d_k, d_v = (torch.zeros_like(x) for x in (q, k, v))
        d_learned = [
            torch.zeros_like(table) if ctx.needs_input_grad[4 + n] else None for n, table in enumerate(learned)
        ]
        for strip, number, table, factors in ctx.plan.parts(tuple(learned)):
            d_table = d_learned[number] if learned else None
            found = torch.ops.unified_attn.flash_backward(
                strip.queries(g_out),
                None if g_lse is None else strip.queries(g_lse),
                *_inputs(strip, q, k, v, table, ctx.tame),
                strip.queries(out),
                strip.queries(lse),
                table,
                factors,
                ctx.plan.problem.scale,
                False,
                d_table is not None,
                "tiled",
            )
            strip.write_queries(d_q, found[0])
            strip.add_keys(d_k, found[1])
            strip.add_keys(d_v, found[2])
            if d_table is not None:
                d_table += found[3]
        return (None, d_q, d_k, d_v, *d_learned)


def _inputs(
    strip: Strip, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, tame: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a strip; rows that take part in no visible pair of it zeroed, unless they can do no harm."""
    q, k, v = strip.queries(q), strip.gather_keys(k), strip.gather_keys(v)
    if tame or table is None:
        return q, k, v
    visible = (table != -torch.inf).expand(-1, -1, strip.height, strip.width)
    return silence(q, k, v, visible.any(3), visible.any(2))


def is_tame(x: Tensor) -> bool:
    """Whether no product of two such numbers can be inf or NaN, so that -inf added to it hides it."""
    if x.numel() == 0:
        return True
    low, high = x.detach().aminmax()  # NaN is neither below nor above anything
    return bool((low > -1e15) & (high < 1e15))


def _learns(table: Tensor | None) -> bool:
    return table is not None and table.requires_grad
