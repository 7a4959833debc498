"""What a mask is, and how masks compose: ``&`` (both), ``|`` (either), ``~`` (not)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, cast

import torch
from torch import Tensor, nn

from unified_attn.pairs import Pairs, Shape, check_answer, describe
from unified_attn.rows import Band, Listed, Listing, union

if TYPE_CHECKING:
    from unified_attn.masks.graph import Graph

Reach = tuple[int | None, int | None]


@dataclass(frozen=True, eq=False)
class Candidates:
    """A superset of the allowed pairs in O(edges).

    Args:
        pairs: The pairs, or what lists them on demand.
        rest: What must still be asked of each listed pair; None if all of them are allowed.
    """

    pairs: Listed | Band | Listing
    rest: Mask | None = None

    def list(self) -> Listed:
        """The pairs as a list."""
        return self.pairs.list()


@dataclass(frozen=True, eq=False)
class Spans:
    """Exactly the pairs of query i, a row of q, with the rows ``low[b, i]``, ..., ``high[b, i] - 1`` of k.

    Args:
        low: ``[1 | B, Nq]`` int64, in 0..Nk.
        high: ``[1 | B, Nq]`` int64; ``low`` where there is none.
    """

    low: Tensor
    high: Tensor

    @property
    def varies(self) -> bool:
        """Whether batch entries differ."""
        return self.low.shape[0] > 1 or self.high.shape[0] > 1

    def __and__(self, other: Spans) -> Spans:
        low = torch.maximum(self.low, other.low)
        return Spans(low, torch.maximum(torch.minimum(self.high, other.high), low))


@dataclass(frozen=True, eq=False)
class Prefix:
    """Exactly the pairs ``queries[b, i] & keys[b, j] & (j - i <= right)``, i and j in the last being positions.

    Running sums over the keys then hold what every query asks for: see :func:`~unified_attn.linear_attention`.

    Args:
        right: Keys after the query's own position; None = no limit.
        queries: ``[1 | B, Nq]`` bool, or None = all.
        keys: ``[1 | B, Nk]`` bool, or None = all.
    """

    right: int | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None

    def __and__(self, other: Prefix) -> Prefix:
        def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
            return b if a is None else a if b is None else a & b

        return Prefix(_least(self.right, other.right), both(self.queries, other.queries), both(self.keys, other.keys))


class Mask(nn.Module, ABC):
    """Who may interact: a rule over pairs of a query i and a key j. True = may attend.

    A mask of one's own needs :meth:`allow` alone; the other methods tell back ends about structure that they can use.
    Masks compose with ``&``, ``|`` and ``~``; order never matters. Those that hold tensors hold them as buffers, so
    that ``.to(device)`` of the layer that owns the mask moves them.

    Attributes:
        space: What i and j count: ``"position"`` (of tokens: ``q_positions`` of a call), ``"row"`` (of q and k) or
            ``"token"`` (rows of k, the queries being the last of them, whatever positions a call gives).

    Example:
        A mask that lets tokens of equal parity meet:

        >>> import torch
        >>> class Parity(Mask):
        ...     def allow(self, b, h, i, j):
        ...         return (i - j) % 2 == 0
        >>> print(Parity().draw(3, 3))
        #.#
        .#.
        #.#
    """

    space: Literal["position", "row", "token"] = "position"

    @abstractmethod
    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Whether query i may attend key j.

        Args:
            b: Batch index. All four are integer tensors that broadcast with each other.
            h: Query head.
            i: Query.
            j: Key.

        Returns:
            A bool tensor that broadcasts with them.
        """

    def check(self, shape: Shape) -> None:
        """Raises ValueError if the mask does not fit a call of this shape."""

    def on(self, pairs: Pairs) -> Tensor:
        """The rule evaluated on index tensors, in the space that it counts."""
        allowed = self.allow(pairs.batch, pairs.head, *pairs.ends(self.space))
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            got = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
            raise TypeError(
                f"{type(self).__name__} must return a bool tensor (True = may attend), not {got}; "
                f"values to add to the logits belong in a bias (Additive)"
            )
        check_answer(type(self).__name__, allowed, pairs)
        return allowed

    def band(self) -> Reach | None:
        """(left, right) if the mask is exactly ``-left <= j - i <= right`` (None = unlimited), else None."""
        return None

    def candidates(self, shape: Shape) -> Candidates | None:
        """A superset of the allowed pairs in O(edges), or None if that is all pairs."""
        return band_candidates(self.band(), shape)

    def spans(self, shape: Shape) -> Spans | None:
        """The mask as one run of keys a query, the same in every head, else None. Not compiled."""
        band = self.band()
        if band is None or shape.offset is None:
            return None
        left, right = (far if side is None else side for side, far in zip(band, _far(shape), strict=True))
        ends = Band(shape.num_queries, shape.num_keys, shape.offset, left, right, shape.device).ends()
        return Spans(*(end[None] for end in ends))

    def prefix(self, shape: Shape) -> Prefix | None:
        """The mask as a limit on the right and whole queries and keys left out, if it is exactly that, else None."""
        band = self.band()
        return Prefix(band[1]) if band is not None and band[0] is None else None

    @property
    def graph(self) -> Graph | None:
        """The one graph whose edges list the pairs, so that values can be tied to them; None if there is none."""
        return None

    @property
    def counts_from_zero(self) -> bool:
        """Whether both sides are nodes 0..N-1 by default (a graph is involved), rather than queries = the last keys."""
        return False

    def __and__(self, other: Mask) -> Mask:
        return And(self, other) if _is_mask(other, "&") else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other) if _is_mask(other, "|") else NotImplemented

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> NoReturn:  # else `a and b` would be b, silently
        raise TypeError(f"{self!r} is neither true nor false; masks compose with & | ~, not with and, or, not")

    def draw(self, num_queries: int, num_keys: int, *, batch: int = 1, num_heads: int = 1) -> str:
        """The mask of the first batch entry and head as text: a line a query, ``#`` where it may attend.

        Args:
            num_queries: Nq.
            num_keys: Nk.
            batch: B, for masks that vary with it.
            num_heads: Hq, likewise.
        """
        offset = 0 if self.counts_from_zero else num_keys - num_queries
        device = next(self.buffers(), torch.empty(0)).device
        edges = self.graph.num_edges if self.graph is not None else None
        shape = Shape(batch, num_heads, num_heads, num_queries, num_keys, 1, 1, offset, edges, device)
        self.check(shape)
        q_positions = torch.arange(num_queries, device=device)[None] + offset
        pairs = Pairs(shape, q_positions, torch.arange(num_keys, device=device)[None])
        allowed = self.on(pairs).expand(batch, num_heads, num_queries, num_keys)
        table = cast(list[list[bool]], allowed[0, 0].tolist())
        return "\n".join("".join("#" if cell else "." for cell in row) for row in table)


class Keeper(Mask):
    """A mask whose tensors say which pairs there are, and which keeps what it listed until they move."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[object, Any] = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._kept.clear()  # lists stay on the device where they were made
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own lacks annotations
        return self

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}  # a copy, or one that is saved, makes its own


def band_candidates(band: Reach | None, shape: Shape) -> Candidates | None:
    """The pairs of a band with two finite sides, where positions are the default ones."""
    if band is None or shape.offset is None:
        return None
    left, right = band
    if left is None or right is None:
        return None
    return Candidates(Band(shape.num_queries, shape.num_keys, shape.offset, left, right, shape.device))


def _far(shape: Shape) -> tuple[int, int]:
    """Keys on the left and right of a query that are all there are, where positions are the default ones."""
    offset = shape.offset or 0
    return max(offset + shape.num_queries, 0), max(shape.num_keys - offset, 0)


class Compound(Mask):
    """Several masks in one; nested compounds of the same kind are flattened."""

    symbol: str

    def __init__(self, *parts: Mask) -> None:
        super().__init__()
        flat: list[Mask] = []
        for part in parts:
            flat.extend(part.parts if type(part) is type(self) else [part])
        self._parts = nn.ModuleList(flat)

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The masks that are joined."""
        # Asked several times a call: what a Module looks up by name, and a ModuleList goes through, takes far longer.
        return cast(tuple[Mask, ...], tuple(cast(nn.Module, self._modules["_parts"])._modules.values()))

    def check(self, shape: Shape) -> None:
        for part in self.parts:
            part.check(shape)

    @property
    def counts_from_zero(self) -> bool:
        return any(part.counts_from_zero for part in self.parts)

    def __repr__(self) -> str:
        return f" {self.symbol} ".join(
            f"({part!r})" if isinstance(part, Compound) else repr(part) for part in self.parts
        )


class And(Compound):
    """Allowed where every part allows: ``a & b``.

    Example:
        >>> from unified_attn import Causal, Window
        >>> Causal() & Window(1, 1)
        Causal() & Window(left=1, right=1)
        >>> print((Causal() & Window(1, 1)).draw(4, 4))
        #...
        ##..
        .##.
        ..##
    """

    symbol = "&"

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = self.parts[0].allow(b, h, i, j)
        for part in self.parts[1:]:
            allowed = allowed & part.allow(b, h, i, j)
        return allowed

    def on(self, pairs: Pairs) -> Tensor:
        allowed = self.parts[0].on(pairs)
        for part in self.parts[1:]:
            allowed = allowed & part.on(pairs)
        return allowed

    def band(self) -> Reach | None:
        bands = [part.band() for part in self.parts]
        return None if None in bands else _meet(bands)

    def candidates(self, shape: Shape) -> Candidates | None:
        graph = self.graph
        if graph is not None:  # never compacted: edges keep their number, whatever hides them
            return Candidates(graph.pairs(shape), _all([part for part in self.parts if part is not graph]))
        others = [part for part in self.parts if part.band() is None]
        banded = band_candidates(_meet(part.band() for part in self.parts), shape)
        options = [] if banded is None else [(banded, others)]
        for part in others:
            candidates = part.candidates(shape)
            if candidates is not None:
                if part.graph is not None:  # one graph of several: a set of pairs
                    pairs = union([candidates.pairs], shape.num_queries, shape.num_keys)
                    candidates = Candidates(pairs)
                options.append((candidates, [other for other in self.parts if other is not part]))
        if not options:
            return None
        best, remaining = options[0]
        for option in options[1:]:
            if option[0].pairs.num_pairs < best.pairs.num_pairs:
                best, remaining = option
        return Candidates(best.pairs, _all([*([] if best.rest is None else [best.rest]), *remaining]))

    def spans(self, shape: Shape) -> Spans | None:
        both: Spans | None = None
        for part in self.parts:
            found = part.spans(shape)
            if found is None:
                return None
            both = found if both is None else both & found
        return both

    def prefix(self, shape: Shape) -> Prefix | None:
        both = Prefix()
        for part in self.parts:
            found = part.prefix(shape)
            if found is None:
                return None
            both = both & found
        return both

    @property
    def graph(self) -> Graph | None:
        graphs = [part.graph for part in self.parts if part.graph is not None]
        return graphs[0] if len(graphs) == 1 else None


class Or(Compound):
    """Allowed where some part allows: ``a | b``. A graph in it counts as a set of pairs.

    Example:
        >>> from unified_attn import Window
        >>> print((Window(0, 0) | Window(2, 0) & ~Window(1, 0)).draw(4, 4))
        #...
        .#..
        #.#.
        .#.#
    """

    symbol = "|"

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = self.parts[0].allow(b, h, i, j)
        for part in self.parts[1:]:
            allowed = allowed | part.allow(b, h, i, j)
        return allowed

    def on(self, pairs: Pairs) -> Tensor:
        allowed = self.parts[0].on(pairs)
        for part in self.parts[1:]:
            allowed = allowed | part.on(pairs)
        return allowed

    def candidates(self, shape: Shape) -> Candidates | None:
        found = []
        for part in self.parts:
            candidates = part.candidates(shape)
            if candidates is None:
                return None
            found.append(candidates)
        pairs = union([candidates.pairs for candidates in found], shape.num_queries, shape.num_keys)
        return Candidates(pairs, None if all(candidates.rest is None for candidates in found) else self)


class Not(Mask):
    """Allowed where the other mask does not allow: ``~a``. A graph in it counts as a set of pairs.

    Example:
        >>> from unified_attn import Causal
        >>> ~Causal()
        ~Causal()
        >>> print((~Causal()).draw(3, 3))
        .##
        ..#
        ...
    """

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask

    def allow(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ~self.mask.allow(b, h, i, j)

    def on(self, pairs: Pairs) -> Tensor:
        return ~self.mask.on(pairs)

    def check(self, shape: Shape) -> None:
        self.mask.check(shape)

    @property
    def counts_from_zero(self) -> bool:
        return self.mask.counts_from_zero

    def __invert__(self) -> Mask:
        return self.mask

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, Compound) else f"~{self.mask!r}"


def _is_mask(other: object, symbol: str) -> bool:
    if isinstance(other, Tensor):
        raise TypeError(f"{symbol} joins masks; the other is a tensor {describe(other)}: wrap it as DenseMask(tensor)")
    return isinstance(other, Mask)


def _all(masks: list[Mask]) -> Mask | None:
    """The conjunction of some masks; None of none."""
    return None if not masks else masks[0] if len(masks) == 1 else And(*masks)


def _meet(bands: Iterable[Reach | None]) -> Reach:
    """The narrowest reach on each side, None being unlimited, over the bands that there are."""
    left: int | None = None
    right: int | None = None
    for band in bands:
        if band is not None:
            left, right = _least(left, band[0]), _least(right, band[1])
    return left, right


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
