"""What a bias of the matrix is, and the parts that several lists of them use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from tests.parity import oracle
from tests.parity.grid import Grid
from tests.parity.mask_cases import MaskCase
from unified_attn import Bias, RoPE

Exact = dict[str, Tensor]  # the oracle's copies of the tensors that get gradients, by name
Vectors = Callable[[Exact, Tensor, Tensor], Tensor]  # from queries and keys of the entries


@dataclass
class BiasCase:
    """The library's bias beside what the oracle needs to know of it."""

    bias: Bias | None
    dense: list[Callable[[Exact], Tensor]] = field(default_factory=list)  # broadcast to [B, H, Nq, Nk]
    tied: list[Callable[[Exact], Tensor]] = field(default_factory=list)  # [1 or H, E]
    turn: Callable[[Tensor], Tensor] | None = None  # positions [B, N] to matrices
    key_vectors: list[Vectors] = field(default_factory=list)  # [E, G, D] or [B or 1, E, G, D]
    value_vectors: list[Vectors] = field(default_factory=list)

    def __add__(self, other: BiasCase) -> BiasCase:
        return BiasCase(
            self.bias + other.bias,
            self.dense + other.dense,
            self.tied + other.tied,
            self.turn or other.turn,
            self.key_vectors + other.key_vectors,
            self.value_vectors + other.value_vectors,
        )


def rope(g: Grid, layout: str, *, part: bool = False, start: int = 0, base: float = 10000.0) -> BiasCase:
    # With `part` the last coordinates stay: of an odd head size too.
    rotary = (g.dim - 1) // 2 * 2 if part else g.dim
    bias = RoPE(g.dim, base, layout=layout, rotary_dim=rotary if part else None, start=start)
    return BiasCase(bias, turn=lambda at: oracle.rotations(at + start, g.dim, layout, rotary, base))


def number_of_edges(m: MaskCase) -> int:
    return 6 if m.edges is None else m.edges.shape[1]  # without a graph the call is to be refused
