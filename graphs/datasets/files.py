"""Where the files of data sets lie, and how missing ones come there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path


def folder() -> Path:
    """The data folder: ``UNIFIED_ATTN_DATA``, default ``data`` in the working directory."""
    return Path(os.environ.get("UNIFIED_ATTN_DATA", "data"))


def check_choice(argument: str, value: str, choices: Sequence[str]) -> None:
    """Raises ValueError, listing the choices, if the value is none of them."""
    if value not in choices:
        raise ValueError(f"{argument} is {value!r}; choose one of {', '.join(map(repr, choices))}")


def require(place: str, names: Sequence[str], source: str, download: Callable[[Path], object] | None = None) -> Path:
    """The folder that holds these files, downloaded first if some are missing.

    Args:
        place: Of the folder within the data folder.
        names: Of the files in it.
        source: Where they come from, for the error.
        download: Called with the data folder; puts all the files in their place.

    Raises:
        FileNotFoundError: If a file is missing and could not be downloaded; its cause is what the download raised.
    """
    path = folder() / place

    def missing() -> list[str]:
        return [name for name in names if not (path / name).is_file()]

    cause = None
    if missing() and download is not None:
        try:
            download(folder())
        except Exception as error:  # of many kinds: no network, no torch-geometric, a folder that is read-only
            cause = error
    if absent := missing():
        raise FileNotFoundError(
            f"no {', '.join(absent)} in {path}: fetch from {source} and put there, "
            "or set UNIFIED_ATTN_DATA to the folder that has the data"
        ) from cause
    return path
