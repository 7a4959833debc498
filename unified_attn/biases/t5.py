"""T5's relative positions: a learned value for each bucket of distances."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.biases.base import Bias, widened
from unified_attn.biases.learned import check_heads, check_size
from unified_attn.pairs import Shape, check_flag


class T5Bias(Bias):
    """A learned value for each bucket of distances: b_ij = weight[bucket(j - i), h].

    Near distances have a bucket each, farther ones share buckets whose edges grow geometrically up to ``max_distance``,
    and all beyond are in the last. The edges are found with integers, so no rounding moves a distance to its neighbour.
    The weight starts at 0, so that an untrained bias changes nothing. T5 scales no score: pass ``scale=1.0``.

    Args:
        num_heads: Hq.
        num_buckets: Size of the table; if ``bidirectional`` it is even, one half for the keys up to the query's
            position and one for those after it.
        max_distance: Where the last bucket begins at the latest.
        bidirectional: Whether direction counts (encoders). If not, all keys after the query are in bucket 0 (decoders).

    Attributes:
        weight: ``[num_buckets, num_heads]``: the layout of ``relative_attention_bias.weight`` in a T5 checkpoint, which
            it loads as it is.

    Raises:
        TypeError: If a size is no integer, or ``bidirectional`` neither True nor False.
        ValueError: If a size is out of range, or, in a call, heads or device differ.

    Reference: Raffel et al., 2020, arXiv 1910.10683, Section 2.1; buckets of the authors' code.

    Example:
        >>> T5Bias(8).bucket(torch.tensor([-20, -8, -1, 0, 1, 8, 20]))  # key minus query
        tensor([10,  8,  1,  0, 17, 24, 26])
        >>> T5Bias(8, bidirectional=False).bucket(torch.tensor([3, -1, -16, -200]))
        tensor([ 0,  1, 16, 31])
    """

    weight: nn.Parameter
    buckets: Tensor
    relative = True

    def __init__(
        self, num_heads: int, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        check_flag("bidirectional", bidirectional, "whether direction counts")
        check_size("num_heads", num_heads)
        check_size("num_buckets", num_buckets, least=4 if bidirectional else 2)
        check_size("max_distance", max_distance)
        if bidirectional and num_buckets % 2:
            raise ValueError(f"num_buckets is {num_buckets}; each direction has half of them, so it must be even")
        size = num_buckets // 2 if bidirectional else num_buckets
        if max_distance <= size // 2:
            raise ValueError(
                f"max_distance is {max_distance}, but the first {size // 2} distances have a bucket each: it must be "
                f"greater"
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        before = _buckets(size, max_distance)
        after = [size + bucket for bucket in before] if bidirectional else [0] * len(before)
        table = torch.tensor([*before[:0:-1], 0, *after[1:]])  # of -max_distance, ..., max_distance
        self.register_buffer("buckets", table, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 0."""
        nn.init.zeros_(self.weight)

    def bucket(self, distance: Tensor) -> Tensor:
        """Buckets of some distances, key minus query."""
        return self.buckets[distance.clamp(-self.max_distance, self.max_distance) + self.max_distance]

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return widened(self.weight)[self.bucket(j - i), h]

    def check(self, shape: Shape) -> None:
        check_heads("T5Bias", self.num_heads, self.weight, shape)

    def __repr__(self) -> str:
        sizes = f"num_buckets={self.num_buckets}, max_distance={self.max_distance}"
        return f"T5Bias({self.num_heads}, {sizes}, bidirectional={self.bidirectional})"


def _buckets(size: int, max_distance: int) -> list[int]:
    """The bucket of each distance 0, ..., max_distance, out of ``size``.

    The first half are exact. Distance d of the others is in bucket exact + floor(shared * log(d / exact) /
    log(max_distance / exact)), which is asked of powers, as integers: d^shared >= exact^(shared - t) * max_distance^t.
    """
    exact = size // 2
    shared = size - exact
    found, step = list(range(exact)), 0
    for distance in range(exact, max_distance + 1):
        while step < shared - 1 and distance**shared >= exact ** (shared - step - 1) * max_distance ** (step + 1):
            step += 1
        found.append(exact + step)
    return found
