"""Where tests find the public data sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.datasets.files import folder


def data(place: str) -> Path:
    """A folder or file of the data folder; skips the test where there is none."""
    path = folder() / place
    if not path.exists():
        pytest.skip(f"no {path}; set UNIFIED_ATTN_DATA to the folder that has the data sets")
    return path
