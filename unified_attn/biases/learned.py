"""What learned biases share: checks of sizes, and of integers that pick from a table."""

from __future__ import annotations

import inspect
from typing import NoReturn

import torch
from torch import Tensor, nn

from unified_attn.pairs import Shape, check_count, check_device, check_integers, fits


class Maker(nn.Module):
    """What gives a bias when it is called on data; it is none itself, and says so where it is taken for one."""

    @property
    def remedy(self) -> str:
        """What to do with it, for an error message."""
        data = ", ".join(inspect.signature(self.forward).parameters)
        return f"call it on its data ({data}): what that gives is the Bias"

    def __add__(self, other: object) -> NoReturn:
        raise TypeError(f"+ joins biases, and {self!r} is none yet; {self.remedy}")

    __radd__ = __add__


def check_size(name: str, value: object, least: int = 1) -> None:
    """Raises TypeError unless ``value`` is an int, and ValueError if it is below ``least``."""
    check_count(name, value, "give an integer")
    if value < least:  # type: ignore[operator]
        raise ValueError(f"{name} is {value}; it must be at least {least}")


def check_heads(name: str, num_heads: int, weight: Tensor, shape: Shape) -> None:
    """Raises ValueError unless a bias was made for q's heads, and its weight is where q is."""
    check_device(f"{name}'s weight", weight, shape)
    if num_heads != shape.num_heads:
        raise ValueError(f"{name} was made for num_heads = {num_heads}, but q has {shape.num_heads} heads")


def serves(codes: Tensor, shape: Shape) -> bool:
    """Whether codes are there for each sequence of a batch, or for all alike."""
    return fits(codes.shape[0], shape.batch)


def check_pair_codes(name: str, what: str, codes: Tensor, shape: Shape) -> None:
    """Raises ValueError unless ``[1 | B, Nq, Nk, ...]`` codes fit a call."""
    check_device(f"{name}'s {what}", codes, shape)
    rows, columns = codes.shape[1:3]
    if not (serves(codes, shape) and rows == shape.num_queries and columns == shape.num_keys):
        raise ValueError(
            f"{name}'s {what} is {list(codes.shape[0 if codes.shape[0] != 1 else 1 :])}, but q and k ask for "
            f"[Nq, Nk] = [{shape.num_queries}, {shape.num_keys}] or [B, Nq, Nk], B = {shape.batch}"
        )


def codes_within(name: str, codes: Tensor, low: int, high: int) -> Tensor:
    """The same integers as int64, after a range check.

    Raises:
        TypeError: If they are no integers.
        ValueError: If one is below ``low`` or above ``high``; names it and its place.
    """
    check_integers(name, codes, "give integers")  # no number in it: a compiler would take that for a constant
    checked: Tensor = _codes_within(codes, low, high, name)
    return checked


@torch.library.custom_op("unified_attn::codes_within", mutates_args=())
def _codes_within(codes: Tensor, low: int, high: int, name: str) -> Tensor:
    wide = codes.to(torch.int64, copy=True)  # unsigned integers know no minimum
    if wide.numel() and (int(wide.min()) < low or int(wide.max()) > high):
        place = ((wide < low) | (wide > high)).nonzero()[0].tolist()
        raise ValueError(f"{name} holds {int(wide[tuple(place)])} at {place}; it must lie in {low}..{high}")
    return wide


@_codes_within.register_fake
def _(codes: Tensor, low: int, high: int, name: str) -> Tensor:
    return torch.empty_like(codes, dtype=torch.int64)


def at_batch(table: Tensor, b: Tensor, *index: Tensor | int) -> Tensor:
    """``table[b, ...]`` of a table ``[1 | B, ...]``: of size 1, whatever b."""
    return table[(b if table.shape[0] != 1 else torch.zeros_like(b), *index)]
