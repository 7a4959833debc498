"""Vectors by distance, added to keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unified_attn.biases.base import Bias
from unified_attn.pairs import Pairs, Shape, check_count, check_device, check_flag
from unified_attn.vectors import Looked, Vectors


class RelativeVectors(Bias):
    """Adds a learned vector to each key and each value, looked up by how far the key is from the query.

        logits_ij = score(q_i, k_j + key[c_ij]),   out_i = sum_j softmax(logits)_ij (v_j + value[c_ij])
        c_ij      = max_distance + clip(j - i, -max_distance, max_distance)

    It lies on every mask. Under :class:`~unified_attn.Dot`, and for values under any score, vectors of pairs are never
    formed: scores with the tables' rows are picked by c, and weights are summed by c. Other scores form them.

    Args:
        max_distance: Positions further apart than this share a vector, one a side.
        head_dim: D of q and k. All heads share the tables.
        value_dim: Dv of v; default ``head_dim``.
        key: Whether keys get vectors.
        value: Whether values do.

    Attributes:
        key: ``[2 * max_distance + 1, head_dim]``; row ``max_distance + d`` belongs to j - i = d. None if left out.
        value: ``[2 * max_distance + 1, value_dim]``, alike.

    Raises:
        TypeError: If a size is no int, or a part is neither True nor False.
        ValueError: If a size is negative, or both parts are left out; in a call, if q or v have another size.

    Reference: Shaw et al., Self-Attention with Relative Position Representations, 2018, arXiv 1803.02155, Eq. 3 and 4.

    Example:
        >>> bias = RelativeVectors(max_distance=16, head_dim=64)
        >>> bias
        RelativeVectors(16, 64)
        >>> bias.key.shape
        torch.Size([33, 64])
    """

    key: nn.Parameter | None
    value: nn.Parameter | None

    def __init__(
        self, max_distance: int, head_dim: int, *, value_dim: int | None = None, key: bool = True, value: bool = True
    ) -> None:
        super().__init__()
        sizes = {"max_distance": max_distance, "head_dim": head_dim}
        if value_dim is not None:
            sizes["value_dim"] = value_dim
        for name, size in sizes.items():
            check_count(name, size, "give an int")
            if size < 0:
                raise ValueError(f"{name} is {size}; it must not be negative")
        for name, part in (("key", key), ("value", value)):
            check_flag(name, part, "whether that side gets vectors")
        if not key and not value:
            raise ValueError("RelativeVectors needs key, value or both")
        if value_dim is not None and not value:
            raise ValueError(f"value_dim is {value_dim}, but value is False: leave out one of them")
        self.max_distance, self.head_dim = max_distance, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        rows = 2 * max_distance + 1
        self.register_parameter("key", nn.Parameter(torch.empty(rows, head_dim)) if key else None)
        self.register_parameter("value", nn.Parameter(torch.empty(rows, self.value_dim)) if value else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the tables anew."""
        for table in (self.key, self.value):
            if table is not None and table.numel():
                nn.init.xavier_uniform_(table)

    def vectors_on(self, pairs: Pairs, dtype: torch.dtype) -> tuple[Vectors | None, Vectors | None]:
        offset = pairs.key_position - pairs.query_position
        code = offset.clamp(-self.max_distance, self.max_distance) + self.max_distance

        def looked(table: Tensor | None) -> Vectors | None:
            return None if table is None else Looked(table.to(dtype)[:, None], code)

        return looked(self.key), looked(self.value)

    def check(self, shape: Shape) -> None:
        for name, table, letter, argument, size in (
            ("key", self.key, "D", "q", shape.head_dim),
            ("value", self.value, "Dv", "v", shape.value_dim),
        ):
            if table is None:
                continue
            check_device(f"RelativeVectors's {name} table", table, shape)
            if size is not None and table.shape[1] != size:
                option = "head_dim" if name == "key" or self.value_dim == self.head_dim else "value_dim"
                raise ValueError(
                    f"RelativeVectors's {name} table was made for {option} = {table.shape[1]}, but {argument} has "
                    f"{letter} = {size}"
                )

    def __repr__(self) -> str:
        wide = f", value_dim={self.value_dim}" if self.value is not None and self.value_dim != self.head_dim else ""
        left_out = [f", {n}=False" for n, table in (("key", self.key), ("value", self.value)) if table is None]
        return f"RelativeVectors({self.max_distance}, {self.head_dim}{wide}{''.join(left_out)})"
