"""Lengths of shortest paths: a learned value for each length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unified_attn.biases.base import Bias, widened
from unified_attn.biases.learned import Maker, at_batch, check_heads, check_pair_codes, check_size, codes_within
from unified_attn.biases.path_blocks import PathBlockBias, flattened
from unified_attn.pairs import Shape, check_integers, describe, hold


class ShortestPath(Maker):
    """A learned value for each length of a shortest path: calling it on the lengths gives the bias to pass on.

        b_ij = weight[min(distance_ij, max_distance), h]          weight[max_distance + 1, h] where there is no path

    The weight starts at 0, so that an untrained bias changes nothing.

    A packed batch of graphs is given block by block, as the graphs' own matrices, in the order of their nodes: then
    nothing of size N x N is formed for all of them together under a mask that lists its pairs. Pairs of two graphs get
    the value 0; hide them with a mask such as ``Documents``.

    Args:
        max_distance: Greater lengths count as it.
        num_heads: Hq.

    Attributes:
        weight: ``[max_distance + 2, num_heads]``: lengths 0, 1, ..., max_distance, and last the value of no path.

    Raises:
        TypeError: If a size is no integer, or lengths are none.
        ValueError: If a size is out of range, a length below -1 or a shape wrong, or, in a call of the operator, if
            they do not fit q and k.

    Reference: Ying et al., Graphormer, NeurIPS 2021, arXiv 2106.05234, Eq. 6.

    Example:
        >>> path = ShortestPath(2, num_heads=1)
        >>> _ = path.weight.data.copy_(torch.tensor([[0.0], [1.0], [2.0], [9.0]]))
        >>> i, j, zero = torch.arange(2)[:, None], torch.arange(2), torch.tensor(0)
        >>> path(torch.tensor([[0, 7], [-1, 0]])).add(zero, zero, i, j, None).detach()  # 7 counts as 2, -1 is no path
        tensor([[0., 2.],
                [9., 0.]])
        >>> path([torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0]])])  # two graphs, of two nodes and of one
        ShortestPath(2, 1)(2 blocks, 5 pairs)
    """

    weight: nn.Parameter

    def __init__(self, max_distance: int, num_heads: int) -> None:
        super().__init__()
        check_size("max_distance", max_distance)
        check_size("num_heads", num_heads)
        self.max_distance = max_distance
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.empty(max_distance + 2, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 0."""
        nn.init.zeros_(self.weight)

    def forward(self, distance: Tensor | Sequence[Tensor], sizes: Tensor | None = None) -> Bias:
        """The bias of these lengths, integers of which -1 says that there is no path.

        Args:
            distance: ``[Nq, Nk]`` or ``[B, Nq, Nk]``; or blocks: a sequence of ``[n, n]``, one a graph; or, with
                ``sizes``, the same blocks flattened one after the other, ``[sum of n * n]``.
            sizes: ``[G]`` integers, the n of each graph, where the blocks are flattened; else None.
        """
        if sizes is None and not isinstance(distance, Tensor):
            distance, sizes = flattened("distance", distance, "[n, n]")
        if sizes is None:
            codes = self._codes(distance)
            if codes.dim() not in (2, 3):
                raise ValueError(
                    f"distance is {describe(codes)}; it must be [Nq, Nk] or [B, Nq, Nk] (flattened blocks need sizes)"
                )
            return PathLengthBias(self.weight, codes if codes.dim() == 3 else codes[None])
        sizes = codes_within("sizes", sizes, 0, 2**31 - 1)
        codes = self._codes(distance)
        if sizes.dim() != 1 or codes.dim() != 1:
            raise ValueError(
                f"distance is {describe(codes)} and sizes {describe(sizes)}; flattened blocks are [sum of n * n] and "
                f"sizes [G]"
            )
        return PathBlockBias(repr(self), self.weight, codes, sizes)

    def _codes(self, distance: object) -> Tensor:
        check_integers("distance", distance, "give integers, -1 = no path")
        codes = codes_within("distance", distance, -1, 2**62)  # type: ignore[arg-type]  # just checked
        return torch.where(codes < 0, self.max_distance + 1, codes.clamp(max=self.max_distance))

    def __repr__(self) -> str:
        return f"ShortestPath({self.max_distance}, {self.num_heads})"


class PathLengthBias(Bias):
    """What :class:`ShortestPath` gives for a table.

    Args:
        weight: ``[K, Hq]``.
        codes: ``[1 | B, Nq, Nk]``, in 0..K-1.
    """

    weight: Tensor
    codes: Tensor
    space = "row"

    def __init__(self, weight: Tensor, codes: Tensor) -> None:
        super().__init__()
        hold(self, "weight", weight)
        hold(self, "codes", codes)

    def add(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, edge: Tensor | None) -> Tensor:
        return widened(self.weight)[at_batch(self.codes, b, i, j), h]

    def check(self, shape: Shape) -> None:
        check_heads("ShortestPath", self.weight.shape[1], self.weight, shape)
        check_pair_codes("ShortestPath", "distance", self.codes, shape)

    def __repr__(self) -> str:
        codes, heads = self.weight.shape
        return f"ShortestPath({codes - 2}, {heads})({list(self.codes.shape)})"
