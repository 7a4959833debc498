"""A law that was broken, and the comparison that finds it."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.operator import kind_of


class LawBroken(AssertionError):
    """What was checked does not keep a law.

    Args:
        law: The law in a few words.
        detail: Where it broke, what came, and what was wanted.

    Example:
        >>> print(LawBroken("the band is exact", "Mine() at 2 queries x 2 keys"))
        law broken: the band is exact: Mine() at 2 queries x 2 keys
    """

    def __init__(self, law: str, detail: str) -> None:
        self.law = law
        self.detail = detail
        super().__init__(f"law broken: {law}: {detail}")

    def __reduce__(self) -> tuple[type[LawBroken], tuple[str, str]]:
        return type(self), (self.law, self.detail)


def require(law: str, kept: bool, detail: str) -> None:
    """Raises LawBroken unless ``kept``."""
    if not kept:
        raise LawBroken(law, detail)


def require_kind(law: str, thing: object, kind: type) -> None:
    """Raises LawBroken unless ``thing`` is an object of the kind, or of a subclass of it."""
    require(law, isinstance(thing, kind), f"got {kind_of(thing)}; give an object of a subclass of {kind.__name__}")


def require_same(
    law: str, where: str, got: Tensor, wanted: Tensor, tolerance: float = 0.0, ends: tuple[Tensor, Tensor] | None = None
) -> None:
    """Raises LawBroken unless two tensors agree; equal infinities do, and NaN agrees with nothing.

    Args:
        law: The law.
        where: What was checked, and at which sizes.
        got: A tensor.
        wanted: Another of the same shape.
        tolerance: Greatest difference, relative to the greatest finite number wanted or 1.
        ends: Query and key of each pair, where the last dimension is a list of pairs.
    """
    require(law, got.shape == wanted.shape, f"{where}: shape {list(got.shape)}, wanted {list(wanted.shape)}")
    if not got.numel():
        return
    if got.dtype == torch.bool:
        off = (got != wanted).double()
        allowed = 0.5
    else:
        got, wanted = got.detach().double(), wanted.detach().double()
        off = torch.where(got == wanted, 0.0, (got - wanted).abs()).nan_to_num(nan=torch.inf)
        finite = wanted[wanted.isfinite()]
        allowed = tolerance * max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    worst = int(off.argmax())
    if float(off.flatten()[worst]) > allowed:
        at = [int(n) for n in torch.unravel_index(torch.tensor(worst), got.shape)]
        pair = f" at {at}" if at else ""
        if ends is not None:
            pair = f" at batch {at[0]}, head {at[1]}, query {int(ends[0][at[2]])}, key {int(ends[1][at[2]])}"
        raise LawBroken(law, f"{where}: got {_show(got, worst)}{pair}, wanted {_show(wanted, worst)}")


def _show(x: Tensor, place: int) -> str:
    value = x.flatten()[place].item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
