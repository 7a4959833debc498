"""What ``python -m unified_attn.masks.window`` and its siblings do: print a mask and draw it."""

from __future__ import annotations

import sys
import warnings

from unified_attn.masks.base import Mask


def show(mask: Mask, num_queries: int = 12, num_keys: int = 12) -> None:
    """Prints a mask as it would be written, and below it a line a query."""
    print(mask)
    print(mask.draw(num_queries, num_keys))


def let_modules_run() -> None:
    """Keeps Python from warning that a module to be run with ``-m`` has been imported by its package: it is meant to.

    While Python looks for such a module, and at no other time, ``sys.argv[0]`` is ``-m``.
    """
    if sys.argv[:1] == ["-m"]:
        warnings.filterwarnings("ignore", message=r"'unified_attn\.masks\.", category=RuntimeWarning, module="runpy")
