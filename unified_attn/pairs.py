"""What a mask, a bias or a score is asked about: the shape of a call, and index tensors of its pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn

from unified_attn.rows import Listed


@dataclass(frozen=True)
class Shape:
    """Sizes of one call of the operator, for the checks of masks, biases and scores.

    Args:
        batch: B.
        num_heads: Hq.
        num_kv_heads: Hkv.
        num_queries: Nq.
        num_keys: Nk.
        head_dim: D.
        value_dim: Dv; None where only weights are asked for.
        offset: Position of query row 0 (keys start at 0); None if the caller gave positions.
        num_edges: E if the mask holds one graph, whose edges then list the pairs; else None.
        device: Device of q.
    """

    batch: int
    num_heads: int
    num_kv_heads: int
    num_queries: int
    num_keys: int
    head_dim: int
    value_dim: int | None
    offset: int | None
    num_edges: int | None
    device: torch.device

    @property
    def q_positions(self) -> Tensor:
        """Where no positions are given, those of the queries, ``[1, Nq]``."""
        return counted(self.num_queries, self.offset or 0, self.device)

    @property
    def k_positions(self) -> Tensor:
        """Those of the keys, ``[1, Nk]``."""
        return counted(self.num_keys, 0, self.device)


class Positioned:
    """What has a shape and perhaps positions that a caller gave, ``[1 | B, N]`` each; made only if somebody asks."""

    shape: Shape
    q_given: Tensor | None
    k_given: Tensor | None

    @property
    def q_positions(self) -> Tensor:
        """Of the queries, ``[1 | B, Nq]`` integers."""
        return self.shape.q_positions if self.q_given is None else self.q_given

    @property
    def k_positions(self) -> Tensor:
        """Of the keys, ``[1 | B, Nk]`` integers."""
        return self.shape.k_positions if self.k_given is None else self.k_given


@dataclass(frozen=True, eq=False)
class Pairs(Positioned):
    """Index tensors that broadcast to all pairs under consideration.

    For a dense problem the pairs have shape ``[B, H, Nq, Nk]``, for a listed one ``[B, H, E]``; each index tensor has
    size 1 where it does not vary.

    Args:
        shape: Sizes of the call.
        q_given: ``[1 | B, Nq]``, or None for the default, which is made when somebody asks.
        k_given: ``[1 | B, Nk]``, or None with ``q_given``.
        pairs: The list, or None for every query with every key.
    """

    shape: Shape
    q_given: Tensor | None
    k_given: Tensor | None
    pairs: Listed | None = None

    @property
    def is_dense(self) -> bool:
        """Whether these are all pairs rather than a list."""
        return self.pairs is None

    @property
    def batch(self) -> Tensor:
        """Batch index."""
        return torch.arange(self.shape.batch, device=self.shape.device).reshape(-1, *[1] * (3 if self.is_dense else 2))

    @property
    def head(self) -> Tensor:
        """Query head."""
        heads = torch.arange(self.shape.num_heads, device=self.shape.device)
        return heads.reshape(1, -1, *[1] * (2 if self.is_dense else 1))

    @property
    def query(self) -> Tensor:
        """Row of q."""
        if self.pairs is not None:
            return self.pairs.query[None, None]
        return torch.arange(self.shape.num_queries, device=self.shape.device)[None, None, :, None]

    @property
    def key(self) -> Tensor:
        """Row of k."""
        if self.pairs is not None:
            return self.pairs.key[None, None]
        return torch.arange(self.shape.num_keys, device=self.shape.device)[None, None, None, :]

    @property
    def query_position(self) -> Tensor:
        """Position of the query; varies with the batch if the caller's positions do."""
        if self.pairs is not None:
            return self.q_positions.index_select(1, self.pairs.query)[:, None]
        return self.q_positions[:, None, :, None]

    @property
    def key_position(self) -> Tensor:
        """Position of the key."""
        if self.pairs is not None:
            return self.k_positions.index_select(1, self.pairs.key)[:, None]
        return self.k_positions[:, None, None, :]

    def ends(self, space: str) -> tuple[Tensor, Tensor]:
        """Query and key as a rule counts them: by ``"position"``, ``"row"`` of q and k, or ``"token"`` = row of k."""
        if space == "position":
            return self.query_position, self.key_position
        if space == "token":  # the queries are the last of the tokens
            return self.query + (self.shape.num_keys - self.shape.num_queries), self.key
        return self.query, self.key

    @property
    def edge(self) -> Tensor | None:
        """Number of the caller's edge; None where the pairs are no graph's edges."""
        if self.pairs is None or not self.pairs.edges:
            return None
        return torch.arange(self.pairs.num_pairs, device=self.shape.device)[None, None]

    @property
    def has_edges(self) -> bool:
        """Whether the pairs are a graph's edges."""
        return self.pairs is not None and self.pairs.edges

    @property
    def sizes(self) -> tuple[int, ...]:
        """What a rule's answer must broadcast to."""
        shape = self.shape
        if self.pairs is None:
            return shape.batch, shape.num_heads, shape.num_queries, shape.num_keys
        return shape.batch, shape.num_heads, self.pairs.num_pairs

    @property
    def layout(self) -> str:
        """The same in words."""
        return "[B, Hq, Nq, Nk]" if self.is_dense else "[B, Hq, pairs]"

    def gather(self, table: Tensor) -> Tensor:
        """Values of a tensor that broadcasts to ``[B, H, Nq, Nk]``, at these pairs; never expanded."""
        table = table[(None,) * (4 - table.dim())]
        if self.is_dense:
            return table
        ends = (self.batch, self.head, self.query, self.key)
        if torch.compiler.is_compiling():
            # Zeros of one element but all dimensions: a compiler would ask for an index without dimensions its value.
            sizes = zip(ends, table.shape, strict=True)
            return table[tuple(end if size != 1 else end.new_zeros([1] * end.dim()) for end, size in sizes)]
        # One index, by the order in memory so that nothing is copied: where torch is given several, it adds up their
        # gradient from many threads at once, in an order that changes from run to run.
        for dim in range(4):
            table = table.narrow(dim, 0, 1) if table.stride(dim) == 0 and table.shape[dim] > 1 else table
        order = sorted(range(4), key=table.stride, reverse=True)
        place = self.query.new_zeros([1] * self.query.dim())
        for dim in order:
            place = place if table.shape[dim] == 1 else place * table.shape[dim] + ends[dim]
        return table.permute(order).reshape(-1).index_select(0, place.flatten()).view(place.shape)

    def of_edges(self, values: Tensor) -> Tensor:
        """Values tied to the caller's edges, ``[E]`` or ``[E, H]``, as ``[1, 1 | H, E]``."""
        return values[None, None] if values.dim() == 1 else values.t()[None]


def counted(size: int, start: int, device: torch.device) -> Tensor:
    """Positions start, start + 1, ... ``[1, size]``."""
    return (torch.arange(size, device=device) + start)[None]


def hold(module: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Gives a module a tensor that moves with it: a parameter stays one (trained, saved), others are not saved."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor, persistent=False)


def describe(tensor: Tensor) -> str:
    """A tensor's shape and dtype for an error message: ``[2, 3] float32``."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def check_integers(name: str, tensor: object, remedy: str) -> None:
    """Raises TypeError unless ``tensor`` is a tensor of integers (bool is none)."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; {remedy}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} is {describe(tensor)}; {remedy}")


def check_count(name: str, value: object, remedy: str) -> None:
    """Raises TypeError unless ``value`` is an int (bool is none)."""
    if isinstance(value, bool) or not isinstance(value, (Integral, torch.SymInt)):  # NumPy's integers are Integral
        raise TypeError(f"{name} is {value!r}; {remedy}")


FAR = 2**62
"""Distances are below it, so that a position and a distance add up in int64."""


def check_far(name: str, value: int, remedy: str) -> None:
    """Raises ValueError if a distance, or what makes one, is too great for int64."""
    if value >= FAR:
        raise ValueError(f"{name} is {value}; it must be below 2 ** 62{remedy}")


def check_flag(name: str, value: object, remedy: str) -> None:
    """Raises TypeError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give True or False, {remedy}")


def check_number(name: str, value: object, remedy: str) -> None:
    """Raises TypeError unless ``value`` is a Python number: a tensor would lose its gradient."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        got = describe(value) if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{name} is {got}; {remedy}")


def check_floats(name: str, tensor: object, remedy: str) -> None:
    """Raises TypeError unless ``tensor`` is a tensor of floats."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        got = describe(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name} is {got}; {remedy}")


def fits(size: int, full: int) -> bool:
    """Whether a dimension broadcasts to another.

    Not `in (1, full)`: a compiler takes that for a comparison of objects. The length of a list that values of a tensor
    decide is unknown to it, and is not asked for: then yes.
    """
    if not torch.compiler.is_compiling():
        return size == 1 or size == full
    from torch.fx.experimental.symbolic_shapes import guard_or_true  # costs eager code time to import

    return bool(guard_or_true(size == 1) or guard_or_true(size == full))


def fit(sizes: Sequence[int], full: Sequence[int]) -> bool:
    """Whether a shape broadcasts to another."""
    paired = zip(reversed(sizes), reversed(full), strict=False)
    return len(sizes) <= len(full) and all(fits(size, whole) for size, whole in paired)


def check_answer(name: str, answer: Tensor, pairs: Pairs) -> None:
    """Raises ValueError unless what a rule returned broadcasts to the pairs that it was asked about."""
    shape, full = pairs.shape, pairs.sizes
    sizes = tuple(answer.shape)
    if not fit(sizes, full):
        raise ValueError(
            f"{name} returned shape {list(sizes)}, which does not broadcast to {pairs.layout} = {list(full)}; compute "
            f"with b, h, i and j, and look a table up as table[i, j]"
        )
    if answer.device != shape.device:
        raise ValueError(f"{name} returned a tensor on {answer.device}, but q is on {shape.device}; move what it uses")


def check_broadcast(name: str, table: Tensor, shape: Shape) -> None:
    """Raises ValueError unless ``table`` broadcasts to ``[B, Hq, Nq, Nk]``."""
    full = (shape.batch, shape.num_heads, shape.num_queries, shape.num_keys)
    sizes = tuple(table.shape)
    if not fit(sizes, full):
        raise ValueError(
            f"{name} has shape {list(sizes)}, which does not broadcast to [B, Hq, Nq, Nk] = {list(full)}; "
            f"give each dimension its full size or 1"
        )


def check_device(name: str, tensor: Tensor, shape: Shape) -> None:
    """Raises ValueError unless ``tensor`` is where q is."""
    if tensor.device != shape.device:
        raise ValueError(
            f"{name} is on {tensor.device}, but q is on {shape.device}; move it with .to({str(shape.device)!r})"
        )
