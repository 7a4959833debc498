"""Dropout of attention weights as a function of a counter.

A pair is kept or dropped by a hash of (seed, batch, head, counter), where the counter names the pair: the caller's edge
id, or i * Nk + j when pairs have no ids. No state is advanced, so the backward pass draws the mask again instead of
storing it, the order in which pairs are visited does not matter, and every back end draws the same mask.

    x = seed + (b * Hq + h) * 0x9E3779B97F4A7C15 + counter * 0xD1B54A32D192ED03           (mod 2 ** 64)
    x ^= x >> 32;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 32;  x *= 0x94D049BB133111EB;  x ^= x >> 32
    keep  iff  x >> 40  >=  floor(p * 2 ** 24)

The shifts are logical. What is kept is scaled by 1 / (1 - p); with p = 1 nothing is kept.
"""

from torch import Tensor


def signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number."""
    return word - 2**64 if word >= 2**63 else word


HEAD_STEP = signed(0x9E3779B97F4A7C15)
PAIR_STEP = signed(0xD1B54A32D192ED03)
FIRST_FACTOR = signed(0xBF58476D1CE4E5B9)
SECOND_FACTOR = signed(0x94D049BB133111EB)
HIGH_HALF = 0xFFFFFFFF
DRAW_BITS = 24


def threshold(p: float) -> int:
    """The smallest draw that is kept, of 2 ** 24 equally likely ones."""
    return int(p * 2**DRAW_BITS)


def _fold(x: Tensor) -> Tensor:
    """x ^ (x >> 32) with a logical shift: torch's shift of int64 copies the sign, so the copies are masked off."""
    return x ^ ((x >> 32) & HIGH_HALF)


def mix(x: Tensor) -> Tensor:
    """A hash of int64 numbers: each bit of the result depends on each bit of x."""
    x = _fold(x) * FIRST_FACTOR
    x = _fold(x) * SECOND_FACTOR
    return _fold(x)


def keep(seed: Tensor, batch: Tensor, head: Tensor, num_heads: int, counter: Tensor, p: float) -> Tensor:
    """Which weights are kept; the arguments broadcast against each other.

    Args:
        seed: int64, one element (a tensor, so that compiled code does not bake it in).
        batch: int64, the index of the batch item.
        head: int64, the index of the query head.
        num_heads: Hq.
        counter: int64, the number of the pair.
        p: Probability of being dropped, 0 to 1.

    Returns:
        bool, of the broadcast shape.

    Example:
        >>> import torch
        >>> index = torch.arange(4)
        >>> keep(torch.tensor(7), torch.tensor(0), torch.tensor(0), 1, index, 1.0)
        tensor([False, False, False, False])
    """
    x = seed.reshape(()) + (batch * num_heads + head) * HEAD_STEP + counter * PAIR_STEP
    draw = (mix(x) >> (64 - DRAW_BITS)) & (2**DRAW_BITS - 1)
    kept: Tensor = draw >= threshold(p)
    return kept
