"""Rotary position embedding: a bias that turns queries and keys."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from unified_attn.biases.base import Bias
from unified_attn.biases.rope_scaling import RoPEScaling, check_scaling
from unified_attn.pairs import Shape, check_count, check_far, check_number


class RoPE(Bias):
    """Turns each pair of coordinates of q and k by an angle proportional to the position.

        <R_i q, R_j k> = <q, k> + <q, (R_{j - i} - I) k>

    so it is a bias whose value depends on content. Pair p of D/2 turns by position * base^(-2p/D). Angles are float32
    (float64 for float64 inputs) whatever the model's dtype: nothing is stored that ``.to(bfloat16)`` could round.

    Args:
        head_dim: D, even.
        base: Base of the frequencies.
        layout: Which coordinates form pair p: ``"half"`` p and p + D/2 (Llama as in transformers), ``"interleaved"`` 2p
            and 2p + 1 (the paper, GPT-J). Weights trained with one are wrong with the other.
        scaling: How the frequencies reach beyond the trained length: :class:`~unified_attn.PositionInterpolation`,
            ``NTK``, ``DynamicNTK``, ``YaRN`` or ``Llama3``. Its magnitude multiplies turned coordinates of q and of k,
            so that their part of the product grows by its square. Default none.
        rotary_dim: Turn the first coordinates alone (GPT-NeoX); even; default all.
        start: Added to every position.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a size is odd or out of range, a name unknown, or, in a call, D differs.

    Reference: Su et al., RoFormer, 2021, arXiv 2104.09864, Eq. 34.

    Example:
        >>> import torch
        >>> rope = RoPE(2)
        >>> q = torch.tensor([[[[1.0, 0.0]]]])
        >>> turned, _ = rope.turn(q, q, torch.tensor([[1]]), torch.tensor([[0]]))
        >>> turned.flatten()  # cos 1, sin 1
        tensor([0.5403, 0.8415])
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        layout: Literal["half", "interleaved"] = "half",
        scaling: RoPEScaling | None = None,
        rotary_dim: int | None = None,
        start: int = 0,
    ) -> None:
        super().__init__()
        dims = head_dim if rotary_dim is None else rotary_dim
        for name, size in (("head_dim", head_dim), ("rotary_dim", dims), ("start", start)):
            check_count(name, size, "give an integer")
        check_number("base", base, "give a positive number")
        turned = "head_dim" if rotary_dim is None else "rotary_dim"  # of a head turned in part, D may be odd
        for name, size in (("head_dim", head_dim), (turned, dims)):
            if size < 2 or (size % 2 and name == turned):
                raise ValueError(
                    f"{name} is {size}; coordinates are turned in pairs, so it must be even and at least 2"
                )
        if dims > head_dim:
            raise ValueError(f"rotary_dim is {dims}, more than head_dim = {head_dim}")
        if layout not in ("half", "interleaved"):
            raise ValueError(f"layout is {layout!r}; choose 'half' or 'interleaved', as the weights were trained")
        if not 0 < base < math.inf:
            raise ValueError(f"base is {base}; it must be positive and finite")
        check_far("start", abs(start), " in absolute value")
        self.head_dim = head_dim
        self.base = base
        self.layout = layout
        self.rotary_dim = dims
        self.start = start
        self.scaling = check_scaling(scaling)
        found = self.scaling.frequencies(dims, base, torch.ones((), dtype=torch.int64))  # what it refuses, at once
        if found.shape != (dims // 2,):
            raise ValueError(f"{self.scaling!r} gives frequencies {list(found.shape)}; it must be [{dims // 2}]")

    def turn(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        seen = (k_positions + self.start).flatten()
        length = torch.cat([seen, seen.new_zeros(1)]).max() + 1  # there may be no keys
        frequencies = self.scaling.frequencies(self.rotary_dim, self.base, length)
        return self._rotate(q, q_positions, frequencies), self._rotate(k, k_positions, frequencies)

    def _rotate(self, x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        angles = (positions + self.start)[:, None, :, None].to(dtype) * frequencies.to(dtype)
        cos, sin = angles.cos() * self.scaling.magnitude, angles.sin() * self.scaling.magnitude
        turned, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        if self.layout == "half":
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        return turned.to(x.dtype) if rest.shape[-1] == 0 else torch.cat([turned.to(x.dtype), rest], dim=-1)

    @property
    def turns_by_position(self) -> bool:
        return not self.scaling.dynamic

    def check(self, shape: Shape) -> None:
        if self.head_dim != shape.head_dim:
            raise ValueError(f"RoPE was made for head_dim = {self.head_dim}, but q and k have D = {shape.head_dim}")

    def __repr__(self) -> str:
        base = "" if self.base == 10000.0 else f", base={self.base:g}"
        part = "" if self.rotary_dim == self.head_dim else f", rotary_dim={self.rotary_dim}"
        start = "" if self.start == 0 else f", start={self.start}"
        scaling = "" if self.scaling == RoPEScaling() else f", scaling={self.scaling!r}"
        return f"RoPE({self.head_dim}{base}, layout={self.layout!r}{scaling}{part}{start})"
