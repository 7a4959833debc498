"""What is known about a relation before any content is seen: priors of :class:`~unified_attn.nn.HeteroAttention`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from unified_attn.biases import EdgeFeatures
from unified_attn.pairs import check_count, check_number


class RelationPrior(nn.Module):
    """How one relation is preferred. Two hooks: one acts on the keys that it brings, one adds to its edges' logits.

    One of one's own overrides either. Priors of one relation compose with ``+``, also with a number.

    Attributes:
        edge_dim: Number of features an edge that :meth:`add` reads; None if it reads none.
        heads: Number of heads that it was made for; None if it serves any.

    Example:
        >>> class Few(RelationPrior):
        ...     def add(self, num_edges, edge_attr, like):
        ...         return like.new_full((num_edges, 1), -1.0)
        >>> Few() + HeadScale(2)
        Few() + HeadScale(2)
    """

    edge_dim: int | None = None
    heads: int | None = None

    def keys(self, k: Tensor) -> Tensor:
        """Keys of the relation's sources, ``[N, H, D]``, as the relation's targets see them."""
        return k

    def add(self, num_edges: int, edge_attr: Tensor | None, like: Tensor) -> Tensor | None:
        """Values ``[E, 1 | H]`` to add to the logits of the relation's edges, or None.

        Args:
            num_edges: E.
            edge_attr: ``[E, edge_dim]``, or None if the prior reads no features.
            like: Keys of the call, whose device and dtype new tensors take.
        """
        return None

    def reset_parameters(self) -> None:
        """Sets all weights to where they start."""

    @property
    def terms(self) -> tuple[RelationPrior, ...]:
        """The priors that are joined: of a single one, itself."""
        return (self,)

    def __add__(self, other: RelationPrior | float) -> RelationPrior:
        return _Joined(self, as_prior(other))


class _Joined(RelationPrior):
    """Several priors of one relation: ``a + b``."""

    def __init__(self, *priors: RelationPrior) -> None:
        super().__init__()
        self._terms = nn.ModuleList([term for prior in priors for term in prior.terms])
        widths = {term.edge_dim for term in self.terms if term.edge_dim is not None}
        if len(widths) > 1:
            raise ValueError(f"{self!r} read {sorted(widths)} features an edge; all must read the same number")
        self.edge_dim = next(iter(widths), None)

    @property
    def terms(self) -> tuple[RelationPrior, ...]:
        return tuple(cast(Iterator[RelationPrior], iter(self._terms)))

    def keys(self, k: Tensor) -> Tensor:
        for term in self.terms:
            k = term.keys(k)
        return k

    def reset_parameters(self) -> None:
        for term in self.terms:
            term.reset_parameters()

    def add(self, num_edges: int, edge_attr: Tensor | None, like: Tensor) -> Tensor | None:
        total: Tensor | None = None
        for term in self.terms:
            values = term.add(num_edges, None if term.edge_dim is None else edge_attr, like)
            if values is not None:
                total = values if total is None else total + values
        return total

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


class Constant(RelationPrior):
    """A fixed number for all edges of the relation: what a plain number among the priors means.

    Args:
        value: Added to the logits; finite.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is not finite.
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        check_number("the prior", value, "give a number, or a RelationPrior such as HeadBias(heads)")
        if not -torch.inf < value < torch.inf:
            raise ValueError(f"the prior is {value}; give a finite number (to leave a relation out, give no edges)")
        self.value = value

    def add(self, num_edges: int, edge_attr: Tensor | None, like: Tensor) -> Tensor:
        return like.new_full((num_edges, 1), self.value)

    def __repr__(self) -> str:
        return f"Constant({self.value:g})"


class HeadBias(RelationPrior):
    """A learned number a head, added to the logits of the relation's edges. It starts at 0 and so changes nothing.

    Args:
        heads: H.

    Attributes:
        weight: ``[H]``.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        _check_heads(heads)
        self.heads = heads
        self.weight = nn.Parameter(torch.zeros(heads))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def add(self, num_edges: int, edge_attr: Tensor | None, like: Tensor) -> Tensor:
        return self.weight.expand(num_edges, -1)

    def __repr__(self) -> str:
        return f"HeadBias({self.heads})"


class HeadScale(RelationPrior):
    """A learned number a head that multiplies the relation's keys, and so its dot products: HGT's mu. It starts at 1.

    Args:
        heads: H.

    Attributes:
        weight: ``[H]``.

    Reference: Hu et al., Heterogeneous Graph Transformer, WWW 2020, arXiv 2003.01332, Eq. 3.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        _check_heads(heads)
        self.heads = heads
        self.weight = nn.Parameter(torch.ones(heads))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def keys(self, k: Tensor) -> Tensor:
        return k * self.weight[:, None]

    def __repr__(self) -> str:
        return f"HeadScale({self.heads})"


class EdgePrior(RelationPrior):
    """The features of an edge, mapped to a number a head: :class:`~unified_attn.EdgeFeatures` of one relation.

    The weight starts at 0, so that an untrained prior changes nothing.

    Args:
        edge_dim: F.
        heads: H.

    Attributes:
        features: Holds the weight, ``[H, F]``.
    """

    def __init__(self, edge_dim: int, heads: int) -> None:
        super().__init__()
        self.features = EdgeFeatures(edge_dim, heads)
        self.edge_dim = edge_dim
        self.heads = heads

    def reset_parameters(self) -> None:
        self.features.reset_parameters()

    def add(self, num_edges: int, edge_attr: Tensor | None, like: Tensor) -> Tensor:
        if edge_attr is None:  # a relation without edges
            edge_attr = self.features.weight.new_zeros(0, self.features.edge_dim)
        values: Tensor = self.features(edge_attr).values
        return values

    def __repr__(self) -> str:
        return f"EdgePrior({self.edge_dim}, {self.heads})"


def as_prior(value: object) -> RelationPrior:
    """A prior as given, or a number as one.

    Raises:
        TypeError: If it is neither.
    """
    return value if isinstance(value, RelationPrior) else Constant(value)  # type: ignore[arg-type]  # it checks


def _check_heads(heads: int) -> None:
    check_count("heads", heads, "give a number of heads")
    if heads < 1:
        raise ValueError(f"heads is {heads}; it must be at least 1")
