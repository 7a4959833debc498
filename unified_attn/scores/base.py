"""What a score is, and the two forms that fused kernels compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from unified_attn.pairs import Pairs, Shape
from unified_attn.vectors import Vectors


@dataclass(frozen=True, eq=False)
class Form:
    """A score in the form of a fused kernel, with r the key vector of a pair (0 if there are none).

        dot (att is None):  cap * tanh(<query_i, key_j + r> * scale / cap)       without the cap if it is None
        sum:                scale * sum_d att[h, d] * LeakyReLU(query_i + key_j + r)_d
        contracted sum:     scale * LeakyReLU(<contract_query, query_i> + <contract_key, key_j + r> + edge)

    Args:
        query: ``[B, Hq, Nq, W]``.
        key: ``[B, Hkv, Nk, W]``; query head h reads key head ``h // (Hq // Hkv)``.
        key_vectors: r, or None.
        att: ``[Hq, W]`` for a sum, None for a dot product; of a contracted sum ones, ``[Hq, 1]``.
        contract_query: ``[Hq, W]``: contract the queries with it first, so that one coordinate is left; or None.
        contract_key: The same for the keys; given if and only if ``contract_query`` is.
        edge: ``[E, Hq]``, of a contracted sum alone, or None.
        cap: Soft cap of the dot product, or None.
        negative_slope: Of LeakyReLU.
    """

    query: Tensor
    key: Tensor
    key_vectors: Vectors | None = None
    att: Tensor | None = None
    contract_query: Tensor | None = None
    contract_key: Tensor | None = None
    edge: Tensor | None = None
    cap: float | None = None
    negative_slope: float = 0.0

    @property
    def contracted(self) -> bool:
        """Whether it is a contracted sum."""
        return self.contract_key is not None


class Score(nn.Module, ABC):
    """How alike a query and a key are: the content part of a logit.

    A score of one's own needs :meth:`logits` alone; it then runs on the back ends that compute with tensors of pairs.

    Attributes:
        linear: Whether logits(q, k + r) = logits(q, k) + logits(q, r), so that vectors of a dense table of pairs are
            never added to keys.

    Example:
        >>> class L1(Score):
        ...     def logits(self, q, k):
        ...         return -(q - k).abs().sum(-1)
        >>> import torch
        >>> L1().logits(torch.ones(3), torch.zeros(3))
        tensor(-3.)
    """

    linear = False

    @abstractmethod
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """Raw scores of queries and keys.

        Args:
            q: ``[B, Hq, ..., D]``, float32 or float64.
            k: The same, broadcastable with q.

        Returns:
            ``[B, Hq, ...]``.
        """

    def on(self, q: Tensor, k: Tensor, pairs: Pairs) -> Tensor:
        """:meth:`logits` for the pairs at hand, for scores that know more about a pair than q and k."""
        return self.logits(q, k)

    def scale(self, head_dim: int) -> float:
        """Multiplies the raw scores where the caller gives no scale."""
        return 1.0

    def finish(self, logits: Tensor) -> Tensor:
        """Applied after the scale and before any bias."""
        return logits

    def form(self, q: Tensor, k: Tensor, key_vectors: Vectors | None) -> Form | None:
        """The same score in the form of a fused kernel; None if it has none."""
        return None

    @property
    def fused(self) -> bool:
        """Whether there is such a form."""
        return type(self).form is not Score.form

    @property
    def sink(self) -> Tensor | None:
        """``[Hq]``: one more logit a query that has no value, or None."""
        return None

    def check(self, shape: Shape) -> None:
        """Raises ValueError if the score does not fit a call of this shape."""


def over_heads(vectors: Tensor, x: Tensor) -> Tensor:
    """``[H, D]`` shaped to broadcast with ``[B, H, ..., D]``."""
    return vectors.reshape(vectors.shape[0], *[1] * (x.dim() - 3), vectors.shape[1])
