"""Large pages for large results.

Fresh memory comes in pages of 4 KiB, each of which the system clears at its first touch: for a result of 87 MB that can
take as long as to compute it. Where Linux leaves large pages to those who ask (``madvise``, the default of many
distributions) we ask for what we allocate; elsewhere nothing happens.

Measured where a guest gives its free memory back to the host after two seconds (free page reporting): 520 MB are
cleared in 46 ms instead of 115 by steps that follow each other, in 400 to 600 ms by the first after a pause.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

LARGE = 2**23
"""Bytes from which on we ask: memory for what is smaller is mostly used again, its pages being there already."""

_PAGE = 2**21
_MADV_HUGEPAGE = 14


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function: Any = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function  # type: ignore[no-any-return]


def fresh(tensor: Tensor) -> Tensor:
    """The tensor, of which nothing was written yet."""
    size = tensor.untyped_storage().nbytes() if tensor.numel() * tensor.element_size() >= LARGE else 0
    if size and (advise := _madvise()) is not None:
        begin = tensor.untyped_storage().data_ptr()
        first = -(-begin // _PAGE) * _PAGE
        advise(first, (begin + size - first) // _PAGE * _PAGE, _MADV_HUGEPAGE)  # a wish: it may be refused
    return tensor
