"""What a back end is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from unified_attn.problem import Problem


class Backend(ABC):
    """Computes a checked problem. It sees tensors, never the class of a mask, bias or score.

    One's own needs no registration: pass the object as ``backend=``.

    Example:
        Three lines of plain attention, good for every dense problem:

        >>> import torch
        >>> from unified_attn import Causal, attention
        >>> class Plain(Backend):
        ...     def unsupported(self, problem):
        ...         return ["edges are not dense"] if problem.has_edges else []
        ...     def run(self, problem):
        ...         low = problem.dense()
        ...         logits = low.logits()
        ...         return low.mix(logits.softmax(-1)), logits.logsumexp(-1)
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
    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Computes the problem.

        Returns:
            Output ``[B, Hq, Nq, Dv]`` and log-sum-exp of the logits ``[B, Hq, Nq]``, in the dtype computed in. A query
            without a visible key has output 0 and lse -inf.
        """

    def note(self) -> str:
        """One line on what the back end found on this machine; empty if there is nothing to say."""
        return ""


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
