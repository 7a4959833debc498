"""The scaled dot product."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.pairs import Shape, check_device, check_number, describe, hold
from unified_attn.scores.base import Form, Score
from unified_attn.vectors import Vectors


class Dot(Score):
    """<q, k> / sqrt(D), capped on request: cap * tanh(s / cap), before any bias.

    Args:
        softcap: Bound of the scaled score, positive, or None.
        sink: ``[Hq]``: one more logit a query, without a value, so that weights sum to less than 1; or None. It counts
            in the lse, which for a query without an allowed key is the sink itself.

    Raises:
        ValueError: If ``softcap`` is not positive or ``sink`` is not ``[Hq]``.

    Reference: Vaswani et al., 2017, arXiv 1706.03762; soft cap: Gemma 2, 2024, arXiv 2408.00118; sinks: gpt-oss, 2025.

    Example:
        >>> import torch
        >>> Dot().logits(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
        tensor(11.)
        >>> round(float(Dot(softcap=50.0).finish(torch.tensor(100.0))), 4)
        48.2014
    """

    linear = True
    _sink: Tensor | None

    def __init__(self, softcap: float | None = None, sink: Tensor | None = None) -> None:
        super().__init__()
        if softcap is not None:
            check_number("softcap", softcap, "give a positive number, or None for no cap")
            if not 0 < softcap < torch.inf:
                raise ValueError(f"softcap is {softcap}; it must be positive and finite, or None for no cap")
        if sink is not None and (not isinstance(sink, Tensor) or not sink.is_floating_point() or sink.dim() != 1):
            got = describe(sink) if isinstance(sink, Tensor) else repr(sink)
            raise ValueError(f"sink is {got}; give a float tensor [Hq], one logit a query head")
        self.softcap = softcap
        hold(self, "_sink", sink)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("...d,...d->...", q, k)  # a matrix product where q and k broadcast against each other

    def scale(self, head_dim: int) -> float:
        return float(max(head_dim, 1) ** -0.5)

    def finish(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def form(self, q: Tensor, k: Tensor, key_vectors: Vectors | None) -> Form | None:
        return Form(q, k, key_vectors, cap=self.softcap)

    @property
    def sink(self) -> Tensor | None:
        return self._sink

    def check(self, shape: Shape) -> None:
        if self._sink is not None:
            check_device("sink", self._sink, shape)
            if self._sink.shape[0] != shape.num_heads:
                raise ValueError(f"sink has {self._sink.shape[0]} entries, but q has {shape.num_heads} heads")

    def __repr__(self) -> str:
        options = [f"softcap={self.softcap:g}"] if self.softcap is not None else []
        options += [f"sink={list(self._sink.shape)}"] if self._sink is not None else []
        return f"Dot({', '.join(options)})"
