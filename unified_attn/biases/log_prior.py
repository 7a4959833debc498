"""A prior given as probabilities, or as weights of edges."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.biases.base import Bias, widened
from unified_attn.biases.edge import check_edge_tied
from unified_attn.pairs import Pairs, Shape, check_broadcast, check_device, check_floats, fits, hold


class LogPrior(Bias):
    """Adds log p, so that weights are proportional to p * exp(score): a prior times a likelihood.

    p = 0 hides the pair, and gets gradient 0. Priors need not sum to 1: a factor common to a row cancels.

    Args:
        prior: Not negative. Where the mask holds one graph, ``[E]`` or ``[E, Hq]`` in the caller's edge order;
            anything else broadcasts to ``[B, Hq, Nq, Nk]``. (A table ``[Nq, Nk]`` beside a graph is written
            ``[1, 1, Nq, Nk]``.) A parameter stays one: it is trained, and checked in each call.

    Raises:
        TypeError: If it is no float tensor.
        ValueError: If a value is negative, infinite or NaN, or, in a call, a shape does not fit.

    Example:
        >>> from unified_attn import attention_weights
        >>> q = k = torch.zeros(1, 1, 1, 4).expand(1, 1, 3, 4)
        >>> attention_weights(q, k, bias=LogPrior(torch.tensor([1.0, 3.0, 0.0])))[0, 0, 0]
        tensor([0.2500, 0.7500, 0.0000])
    """

    prior: Tensor
    space = "row"

    def __init__(self, prior: Tensor) -> None:
        super().__init__()
        check_floats("prior", prior, "give floats, probabilities or weights that are not negative")
        hold(self, "prior", prior)
        _impossible(prior.detach())

    def on(self, pairs: Pairs) -> Tensor:
        impossible = _impossible(self.prior.detach())
        # Filled before the logarithm, whose slope at 0 is infinite: 0 times it would be NaN.
        values = widened(self.prior).masked_fill(impossible, 1.0).log().masked_fill(impossible, -torch.inf)
        return pairs.of_edges(values) if self._tied(pairs.shape) else pairs.gather(values)

    def _tied(self, shape: Shape) -> bool:
        """Whether the values are an edge's rather than a table's."""
        return shape.num_edges is not None and self.prior.dim() in (1, 2)

    def check(self, shape: Shape) -> None:
        check_device("LogPrior's prior", self.prior, shape)
        if not self._tied(shape):
            check_broadcast("LogPrior's prior", self.prior, shape)
        else:
            check_edge_tied("LogPrior's values", self.prior.shape[0], shape)
            if self.prior.dim() == 2 and not fits(self.prior.shape[1], shape.num_heads):
                raise ValueError(
                    f"LogPrior's prior is [E, H] = {list(self.prior.shape)}, but q has {shape.num_heads} heads"
                )
        _impossible(self.prior.detach())  # before any work

    def __repr__(self) -> str:
        return f"LogPrior({list(self.prior.shape)})"


@torch.library.custom_op("unified_attn::impossible", mutates_args=())
def _impossible(prior: Tensor) -> Tensor:
    """Where a prior is 0.

    Raises:
        ValueError: If it is negative, infinite or NaN somewhere; names the value and its place.
    """
    wrong = ~((prior >= 0.0) & (prior < torch.inf))
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        raise ValueError(f"prior holds {float(prior[tuple(place)])} at {place}; it must be finite and not negative")
    return prior == 0.0


@_impossible.register_fake
def _(prior: Tensor) -> Tensor:
    return torch.empty_like(prior, dtype=torch.bool)
