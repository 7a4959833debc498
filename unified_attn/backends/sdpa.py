"""Torch's ``scaled_dot_product_attention``: dense tables of dot products, which are never formed."""

from __future__ import annotations

from torch import Tensor

from unified_attn.backends.base import Backend, cap_reasons, dot_reasons, refuse_tangents
from unified_attn.kernels.flash import flash
from unified_attn.problem import Problem


class SDPA(Backend):
    """The kernel behind ``torch.nn.functional.scaled_dot_product_attention`` on CPU, which gives the lse too.

    The mask becomes its causal flag where it is exactly that, nothing where it hides nothing, and else one float table
    with the bias, as small as they broadcast. No second derivative. Cost: O(Nq Nk D) time, O(N D) memory beside the
    table; the gradient of a learned bias forms logits, some rows at a time.
    """

    def unsupported(self, problem: Problem) -> list[str]:
        reasons = dot_reasons(problem) + cap_reasons(problem)
        if problem.dropout_p > 0.0:
            reasons.append("the kernel draws a dropout of its own, and every back end is to drop the same weights")
        return reasons

    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        causal = is_causal(problem)
        low = problem.dense(masked=not (causal or problem.hides_nothing))
        refuse_tangents(self.name, low.q, low.k, low.v, low.add)
        out, lse = flash(low.q, low.k, low.v, low.add, None, low.scale, causal, self.name)
        return out, lse


def needs_table(problem: Problem) -> bool:
    """Whether the kernel needs a table of what is hidden and added."""
    return problem.adds or not (problem.hides_nothing or is_causal(problem))


def is_causal(problem: Problem) -> bool:
    """Whether torch's flag says it all: as many keys as queries, for it counts rows from the top left, and no bias.

    Under the flag the kernel hides before it scales: a scale of 0 or below would give NaN, or show what is hidden.
    """
    band, shape = problem.band, problem.shape
    if problem.scale <= 0.0 or band is None or band[1] != 0 or problem.adds:
        return False
    if shape.offset is None or problem.hides_nothing:
        return False
    unlimited = band[0] is None or band[0] >= shape.num_queries - 1
    return bool(unlimited and shape.offset == 0 and shape.num_queries == shape.num_keys)
