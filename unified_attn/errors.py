"""The library's own error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


class UnsupportedError(NotImplementedError):
    """A back end was named that cannot run the problem; nothing else is tried in its place.

    Args:
        backend: Name of the back end.
        reasons: Sentences that say why it cannot.

    Example:
        >>> error = UnsupportedError("csr", ["the mask lists no pairs"])
        >>> print(error)
        back end 'csr' cannot run this: the mask lists no pairs
        >>> error.backend, error.reasons
        ('csr', ('the mask lists no pairs',))
    """

    def __init__(self, backend: str, reasons: Sequence[str]) -> None:
        self.backend = backend
        self.reasons = tuple(reasons)
        super().__init__(f"back end {backend!r} cannot run this: {'; '.join(self.reasons)}")

    def __reduce__(self) -> tuple[type[UnsupportedError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.backend, self.reasons)


def refuse_second_derivative(ctx: object, *grads: object) -> NoReturn:
    """Stands in for the derivative of a fused backward pass, and says where there is one.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(
        "csr",
        [
            "the fused kernels have no second derivative; use backend='scatter' or backend='reference' (of a layer: "
            "layer.backend = 'scatter')"
        ],
    )
