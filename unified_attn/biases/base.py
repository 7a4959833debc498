"""What a bias is, and how biases compose: ``+``."""

from __future__ import annotations

from typing import Literal, NoReturn, cast

import torch
from torch import Tensor, nn

from unified_attn.pairs import Pairs, Shape, check_answer, describe
from unified_attn.vectors import Stored, Vectors


class Bias(nn.Module):
    """Which pairs are preferred: a value b_ij added to the logit of query i and key j.

    A bias of one's own overrides one hook, usually :meth:`add`. Biases compose with ``+``. Those that hold tensors hold
    them as parameters or buffers, so that ``.to(device)`` of the layer that owns the bias moves them.

    Attributes:
        space: What i and j count: ``"position"`` (of tokens) or ``"row"`` (of q and k).
        relative: Whether the added value depends on the head and on j - i alone, as ALiBi's does: the tiles of a band
            then share one table.

    Example:
        >>> class Near(Bias):
        ...     def add(self, b, h, i, j, edge):
        ...         return -0.5 * (i - j).abs()
        >>> Near() + NoBias()
        Near() + NoBias()
    """

    space: Literal["position", "row"] = "position"
    relative: bool = False

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor | None:
        """Values to add to the logits, or None if this bias adds nothing.

        Args:
            b: Batch index. All are integer tensors that broadcast with each other.
            h: Query head.
            i: Query.
            j: Key.
            edge: Number of the caller's edge, or None where the pairs are no graph's edges.

        Returns:
            A float tensor that broadcasts with them; -inf, or anything at or below its dtype's lowest finite value,
            hides the pair.
        """
        return None

    def turn(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Turns queries ``[B, Hq, Nq, D]`` and keys ``[B, Hkv, Nk, D]`` by their positions ``[1 | B, N]``.

        At most one term of a sum may override this.
        """
        return q, k

    def vectors(self) -> tuple[Tensor | None, Tensor | None]:
        """Vectors ``[E, Hkv, D]`` and ``[E, Hkv, Dv]`` added to the keys and values of each edge, or None.

        Vectors that are no tensor an edge are given by :meth:`vectors_on`.
        """
        return None, None

    def vectors_on(self, pairs: Pairs, dtype: torch.dtype) -> tuple[Vectors | None, Vectors | None]:
        """:meth:`vectors` for the pairs at hand; overridden where they are looked up or projected."""
        if type(self).vectors is Bias.vectors:
            return None, None
        name, answer = type(self).__name__, self.vectors()
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"{name}.vectors must return two things, for keys and for values, not {answer!r}")
        return _stored(name, "key", answer[0], pairs, dtype), _stored(name, "value", answer[1], pairs, dtype)

    def check(self, shape: Shape) -> None:
        """Raises ValueError if the bias does not fit a call of this shape."""

    def on(self, pairs: Pairs) -> Tensor | None:
        """:meth:`add` evaluated on index tensors, in the space that the bias counts."""
        if type(self).add is Bias.add:  # nothing to add, so no index tensors to make
            return None
        values = self.add(pairs.batch, pairs.head, *pairs.ends(self.space), pairs.edge)
        if values is not None and not (isinstance(values, Tensor) and values.is_floating_point()):
            got = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(
                f"{type(self).__name__} must return a float tensor to add to the logits, not {got}; "
                f"bool rules belong in a mask (Where)"
            )
        if values is not None:
            check_answer(type(self).__name__, values, pairs)
        return values

    @property
    def terms(self) -> tuple[Bias, ...]:
        """The biases that are summed: of a single one, itself."""
        return (self,)

    @property
    def has_vectors(self) -> bool:
        """Whether the bias adds vectors to keys or values."""
        return type(self).vectors is not Bias.vectors or type(self).vectors_on is not Bias.vectors_on

    @property
    def adds(self) -> bool:
        """Whether the bias adds to the logits."""
        return type(self).add is not Bias.add or type(self).on is not Bias.on

    @property
    def turns(self) -> bool:
        """Whether the bias turns q and k."""
        return type(self).turn is not Bias.turn

    @property
    def turns_by_position(self) -> bool:
        """Whether a row's turn follows from its own position alone, so that a cache may hold keys already turned."""
        return True

    def __add__(self, other: Bias) -> Bias:
        if isinstance(other, Tensor):
            raise TypeError(f"+ joins biases; the other is a tensor {describe(other)}: wrap it as DenseBias(tensor)")
        return Sum(self, other) if isinstance(other, Bias) else NotImplemented

    def __bool__(self) -> NoReturn:  # else `a and b` would be b, silently
        raise TypeError(f"{self!r} is neither true nor false; biases compose with +, not with and, or, not")


class Sum(Bias):
    """The sum of several biases: ``a + b``.

    Raises:
        ValueError: If two terms turn q and k: a rotation of a rotation is no sum.
    """

    def __init__(self, *terms: Bias) -> None:
        super().__init__()
        flat = [term for bias in terms for term in bias.terms]
        turning = [repr(term) for term in flat if term.turns]
        if len(turning) > 1:
            raise ValueError(f"{' and '.join(turning)} both turn q and k; keep one of them")
        self._terms = nn.ModuleList(flat)

    @property
    def terms(self) -> tuple[Bias, ...]:
        # Asked several times a call: what a Module looks up by name, and a ModuleList goes through, takes far longer.
        return cast(tuple[Bias, ...], tuple(cast(nn.Module, self._modules["_terms"])._modules.values()))

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


class NoBias(Bias):
    """No pair is preferred: what ``bias=None`` means, for the place where an object is wanted."""

    def __repr__(self) -> str:
        return "NoBias()"


def _stored(name: str, side: str, rows: object, pairs: Pairs, dtype: torch.dtype) -> Vectors | None:
    """Vectors an edge as :meth:`Bias.vectors` returned them; one's own may have returned anything."""
    if rows is None:
        return None
    shape = pairs.shape
    size = shape.head_dim if side == "key" else shape.value_dim
    if not isinstance(rows, Tensor) or not rows.is_floating_point():
        got = describe(rows) if isinstance(rows, Tensor) else type(rows).__name__
        layout = _layout(side, shape)
        raise TypeError(f"{name}.vectors must return a float tensor {layout} of {side} vectors, or None, not {got}")
    if shape.num_edges is None:
        raise ValueError(f"{name}'s {side} vectors are tied to the edges of one Graph, but the mask is a set of pairs")
    if rows.shape != (shape.num_edges, shape.num_kv_heads, rows.shape[-1] if size is None else size):
        raise ValueError(f"{name}.vectors must return {side} vectors {_layout(side, shape)}, not {list(rows.shape)}")
    return Stored(rows.to(dtype))


def _layout(side: str, shape: Shape) -> str:
    """What is wanted, in words; formatted where it is raised, for that fixes the sizes that a compiler leaves open."""
    last, size = ("D", shape.head_dim) if side == "key" else ("Dv", shape.value_dim)
    return f"[E, Hkv, {last}] = [{shape.num_edges}, {shape.num_kv_heads}, {size}]"


def widened(values: Tensor) -> Tensor:
    """Halves as float32, with -inf for what their own dtype calls lowest; other dtypes as they are.

    For values that are summed or picked from a table, before it: sums of halves, and of their gradients, are float32.
    """
    if values.dtype in (torch.float32, torch.float64):
        return values
    return values.float().masked_fill(values <= torch.finfo(values.dtype).min, -torch.inf)
