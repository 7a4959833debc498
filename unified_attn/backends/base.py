"""What a back end is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.autograd import forward_ad

from unified_attn.errors import UnsupportedError
from unified_attn.problem import Problem


class Backend(ABC):
    """Computes a checked problem. It sees tensors, never the class of a mask, bias or score.

    One's own needs no registration: pass the object as ``backend=``.

    Example:
        Three lines of plain attention over tables, with nothing for a query that sees no key:

        >>> import torch
        >>> from unified_attn import Causal, attention
        >>> class Plain(Backend):
        ...     def unsupported(self, problem):
        ...         return ["it is for tables, without dropout"] if problem.has_edges or problem.dropout_p > 0 else []
        ...     def run(self, problem):
        ...         low = problem.dense()
        ...         logits = low.logits()
        ...         return low.mix(logits.softmax(-1).nan_to_num(0.0)), logits.logsumexp(-1)
        >>> q = torch.randn(1, 2, 5, 4)
        >>> ours = attention(q, q, q, mask=Causal(), backend=Plain())
        >>> bool(torch.allclose(ours, attention(q, q, q, mask=Causal()), atol=1e-6))
        True
    """

    @property
    def name(self) -> str:
        """What ``backend=`` and errors call it."""
        return type(self).__name__.lower()

    @abstractmethod
    def unsupported(self, problem: Problem) -> list[str]:
        """Reasons, as sentences, why the problem cannot be run; empty if it can."""

    @abstractmethod
    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """Computes the problem.

        Returns:
            Output ``[B, Hq, Nq, Dv]`` and log-sum-exp of the logits ``[B, Hq, Nq]``, in the dtype computed in. A query
            without a visible key has output 0 and lse -inf. The lse may be None where ``not problem.needs_lse``.
        """

    def note(self) -> str:
        """One line on what the back end found on this machine; empty if there is nothing to say."""
        return ""


def list_reasons(problem: Problem) -> list[str]:
    """Why a back end for listed pairs cannot run the problem."""
    if problem.candidates is not None:
        return []
    return [f"the mask {problem.mask!r} names no list of pairs (a graph, a window with two sides, documents do)"]


def dot_reasons(problem: Problem) -> list[str]:
    """Why a back end for tables of dot products, on CPU, cannot run the problem: what all of that kind share."""
    reasons = []
    if problem.has_edges:
        reasons.append(
            "the mask holds a graph, whose edges may be parallel and carry values: they are no table of pairs"
        )
    form = problem.form
    if form is None or form.att is not None:
        reasons.append(f"the score {problem.score!r} is no dot product")
    if problem.has_vectors:
        reasons.append(f"the bias {problem.bias!r} adds vectors to the keys or values of pairs")
    if problem.q.device.type != "cpu":
        reasons.append(f"the tensors are on {problem.q.device}, and the kernel runs on CPU")
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        reasons.append("a transform of torch.func is active, and the kernel knows none of them")
    return reasons


def cap_reasons(problem: Problem) -> list[str]:
    """Why a kernel without a soft cap cannot run the problem."""
    form = problem.form
    if form is None or form.cap is None:
        return []
    return [f"the score {problem.score!r} caps its scores, and the kernel has no cap"]


def refuse_tangents(name: str, *tensors: Tensor | None) -> None:
    """Raises where forward-mode derivatives are asked for: a custom operator would take them for 0."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise UnsupportedError(
            name, ["its kernel has no forward-mode derivative; use backend='scatter' or backend='reference'"]
        )


def row_max(logits: Tensor) -> Tensor:
    """The shift of a stable softmax over the last dimension: its maximum, 0 for rows with nothing visible."""
    if logits.shape[-1] == 0:
        return logits.new_zeros((*logits.shape[:-1], 1))
    top = logits.detach().amax(-1, keepdim=True)
    return torch.where(top == -torch.inf, 0.0, top)


def normalise(weights: Tensor, total: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """weights / total and log(total) + shift; for rows of total 0, 0 and -inf with gradients 0."""
    empty = total == 0
    safe = torch.where(empty, 1.0, total)
    return weights / safe, (safe.log() + shift).masked_fill(empty, -torch.inf)
