"""Block-sparse attention: blocks of queries beside the keys that they may see, each on torch's own kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unified_attn._watched import is_batch
from unified_attn.backends.base import Backend, cap_reasons, dot_reasons, refuse_tangents
from unified_attn.errors import UnsupportedError
from unified_attn.kernels.flash import flash, flash_backward
from unified_attn.kernels.pages import empty_strided
from unified_attn.problem import Problem, dropout, is_tame, silence
from unified_attn.strips import Cut, high_cut, low_cut, strips
from unified_attn.tiles import Strip


class Tiled(Backend):
    """Any rule mask and additive bias over dot products, at any length: no table of all pairs, forward or backward.

    Where the keys of a query are one run (windows, causal masks, packed documents, and their meets), tiles are known
    beforehand, and those that differ by a shift alone are computed together. Masks and biases are asked tile by tile,
    again in the backward pass. No second derivative. Cost: O(pairs in tiles x D) time, O(N D) memory; learned biases
    that are not relative add O(pairs in tiles).
    """

    def unsupported(self, problem: Problem) -> list[str]:
        reasons = dot_reasons(problem) + cap_reasons(problem)
        if torch.compiler.is_compiling():
            reasons.append("a loop over tiles would be compiled anew for each length")
        return reasons

    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        q, k, v = problem.turned()
        plan = Plan(problem)
        refuse_tangents(self.name, q, k, v, *plan.learned)
        out, lse = _Tiles.apply(plan, q, k, v, *plan.learned)  # type: ignore[no-untyped-call]  # torch's own
        return out, lse


class Strips:
    """The strips of one pass over a problem, with their tables of additive values.

    Args:
        problem: The call.
        cut: The size of tiles.
        differentiates: Whether tables are made with gradients.
    """

    def __init__(self, problem: Problem, cut: Cut, differentiates: bool) -> None:
        self.problem, self.differentiates = problem, differentiates
        self.strips = strips(problem, cut)

    @property
    def has_tables(self) -> bool:
        """Whether a strip has a table, and so may hide something."""
        return any(strip.kind == "table" for strip in self.strips)

    def table(self, strip: Strip) -> Tensor | None:
        """What is added to the logits of a strip, ``[1 | B, 1 | Hq, M | 1, W | 1]``."""
        if strip.kind != "table":
            return None
        table = self.problem.added(strip.tile(self.problem))
        if table is None or table.shape[0] == 1:
            return table
        return table[strip.entries if strip.tiles == 1 else slice(1)]  # relative: the same in every batch entry

    def learned_tables(self) -> list[Tensor]:
        """One table a number, if they have gradients; else none: they are made where they are needed, and dropped."""
        if not (self.differentiates and self.strips and _learns(self.table(self.strips[0]))):
            return []
        places = {strip.number: strip for strip in reversed(self.strips)}
        tables = [self.table(places[number]) for number in range(len(places))]
        return [table for table in tables if table is not None]

    def parts(self, learned: tuple[Tensor, ...], seed: Tensor | None) -> Iterator[Part]:
        """Each strip, with its table and its factors of dropout; of several tiles one batch entry after the other."""
        made: tuple[int, Tensor | None] = (-1, None)
        for strip in self.strips:
            if learned:
                made = strip.number, learned[strip.number]
            elif made[0] != strip.number:
                with torch.set_grad_enabled(self.differentiates):
                    made = strip.number, self.table(strip)
                if self.differentiates and _learns(made[1]):
                    raise ValueError(
                        f"{self.problem.bias!r} has a gradient at some pairs and none at others: let what it captures "
                        f"take part at all of them, or use backend='reference'"
                    )
            factors = None
            if seed is not None:
                tile = strip.tile(self.problem)
                factors = dropout(tile, self.problem.dropout_p, seed, self.problem.dtype).expand(tile.sizes)
            # Views of one batch entry: tiles of several could not be told by strides, and would be copied.
            entries = [strip.entries]
            if strip.tiles > 1:
                entries = [slice(b, b + 1) for b in range(self.problem.shape.batch)[strip.entries]]
            for entry in entries:
                yield Part(strip, entry, made[1], factors)


class Part(NamedTuple):
    """What is computed in one call.

    Args:
        strip: Queries and keys.
        entry: Of the batch.
        table: Added to the logits, or None.
        factors: Of the weights, or None.
    """

    strip: Strip
    entry: slice
    table: Tensor | None
    factors: Tensor | None

    def inputs(self, q: Tensor, k: Tensor, v: Tensor, tame: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Its q, k and v; rows that take part in no visible pair of it zeroed, unless they can do no harm."""
        strip, table = self.strip, self.table
        q, k, v = strip.queries(q[self.entry]), strip.gather_keys(k[self.entry]), strip.gather_keys(v[self.entry])
        if tame or table is None:
            return q, k, v
        visible = (table != -torch.inf).expand(-1, -1, strip.height, strip.width)
        return silence(q, k, v, visible.any(3), visible.any(2))


class Plan:
    """A problem as strips: low ones forward, higher ones backward, unless both passes share learned tables.

    Args:
        problem: The call.
    """

    def __init__(self, problem: Problem) -> None:
        self.scale, self.seed = problem.scale, problem.seed()
        differentiates = torch.is_grad_enabled()  # asked here: inside of a Function it never is
        self.backward = Strips(problem, high_cut(problem), differentiates)
        self.learned = self.backward.learned_tables()
        varies = problem.spans is not None and problem.spans.varies  # then no height is asked for
        one = self.learned or varies
        self.forward = self.backward if one else Strips(problem, low_cut(problem), differentiates)

    def sources(self) -> list[Tensor]:
        """What tables are made of again in the backward pass, so far as objects hold it: it must not change till then.

        Tensors made under inference mode cannot be saved, nor changed outside of it.
        """
        if self.learned or not self.backward.has_tables:
            return []
        problem = self.backward.problem
        held = [*problem.mask.buffers(), *problem.bias.buffers(), *problem.bias.parameters()]
        held += [x for x in (problem.q_given, problem.k_given) if x is not None]
        return [x for x in held if not x.is_inference()]


class _Results:
    """Where the parts of output and log-sum-exp are put together, unless one part is all.

    Args:
        q: Queries, for their sizes.
        v: Values.
        strips: All strips of the pass.
    """

    def __init__(self, q: Tensor, v: Tensor, strips: Strips) -> None:
        self.all_rows = slice(0, q.shape[2])
        # The heads of a row side by side, as the kernel writes them.
        batch, heads, rows, size = *q.shape[:3], v.shape[3]
        strides = (rows * heads * size, size, heads * size, 1)
        self.out = empty_strided(q, (batch, heads, rows, size), strides)
        self.lse = q.new_empty(q.shape[:3])
        entries = range(q.shape[0])
        written = sum(len(entries[strip.entries]) * strip.tiles * strip.height for strip in strips.strips)
        if written < q.shape[0] * q.shape[2]:
            self.out.zero_(), self.lse.fill_(-torch.inf)  # what no strip writes

    def write(self, part: Part, out: Tensor, lse: Tensor) -> None:
        """Takes what was computed of a part."""
        rows = part.strip.rows
        out, lse = part.strip.joined(out), part.strip.joined(lse)
        if rows == self.all_rows and out.shape[0] == self.out.shape[0]:
            self.out, self.lse = out, lse
        else:
            self.out[part.entry, :, rows], self.lse[part.entry, :, rows] = out, lse


class _Tiles(torch.autograd.Function):
    """All strips, one after the other; the backward pass visits them again, so that no gradient is cut up."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        tame = not plan.forward.has_tables or all(is_tame(x) for x in (q, k, v))
        results = _Results(q, v, plan.forward)
        for part in plan.forward.parts(learned, plan.seed):
            causal = part.strip.kind == "causal"
            found = flash(*part.inputs(q, k, v, tame), part.table, part.factors, plan.scale, causal, "tiled")
            results.write(part, *found)
        out, lse = results.out, results.lse
        ctx.plan, ctx.tame = plan, tame
        ctx.save_for_backward(q, k, v, out, lse, *learned, *plan.sources())
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g_out, g_lse = grads
        if any(g is not None and is_batch(g) for g in grads):
            raise UnsupportedError(
                "tiled", ["it takes no batch of gradients at once; use backend='sdpa' or 'reference'"]
            )
        q, k, v, out, lse, *others = ctx.saved_tensors
        learned = others[: len(ctx.plan.learned)]  # others are there so that torch sees them change
        g_out = torch.zeros_like(out) if g_out is None else g_out
        d_learned = [
            torch.zeros_like(table) if ctx.needs_input_grad[4 + n] else None for n, table in enumerate(learned)
        ]
        strips, batch = ctx.plan.backward.strips, q.shape[0]
        once = (
            len(strips) == 1
            and strips[0].is_all(q.shape[2], k.shape[2])
            and (strips[0].tiles == 1 or batch == 1)
            and len(range(batch)[strips[0].entries]) == batch
        )
        gradients = [] if once else [_zeros(x) for x in (q, k, v)]
        for part in ctx.plan.backward.parts(tuple(learned), ctx.plan.seed):
            strip, entry, table, factors = part
            d_table = d_learned[strip.number] if learned else None
            found = flash_backward(
                strip.queries(g_out[entry]),
                None if g_lse is None else strip.queries(g_lse[entry]),
                *part.inputs(q, k, v, ctx.tame),
                strip.queries(out[entry]),
                strip.queries(lse[entry]),
                table,
                factors,
                ctx.plan.scale,
                strip.kind == "causal",
                d_table is not None,
                "tiled",
            )
            if once:  # there is nothing to put together
                gradients = [strip.joined(x) for x in found[:3]]
            else:
                d_q, d_k, d_v = gradients
                d_q[entry, :, strip.rows] = strip.joined(found[0])
                strip.add_keys(d_k[entry], found[1])
                strip.add_keys(d_v[entry], found[2])
            if d_table is not None:
                d_table += found[3]
        return (None, *gradients, *d_learned)


def _learns(table: Tensor | None) -> bool:
    return table is not None and table.requires_grad


def _zeros(like: Tensor) -> Tensor:
    """As ``torch.zeros_like``."""
    return empty_strided(like, like.shape, torch.empty_like(like, device="meta").stride()).zero_()
