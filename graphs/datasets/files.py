"""Where the files of data sets lie, and how missing ones come there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def folder() -> Path:
    """The data folder: ``UNIFIED_ATTN_DATA``; unset or empty, ``data`` in the working directory."""
    return Path(os.environ.get("UNIFIED_ATTN_DATA") or "data").expanduser()


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


@contextmanager
def reading(place: Path, source: str) -> Iterator[None]:
    """Turns whatever goes wrong with the contents of a file, or of the files of a folder, into a ValueError.

    It names the file and where to fetch it. What stops the file from being read at all stays as it is: no permission,
    a package that is missing.
    """
    try:
        yield
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # of many kinds: a pickle may raise any
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(
            f"{place} is damaged or not what it should be: {reason}; fetch it anew from {source}"
        ) from error


def arrays(file: Path, source: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """These arrays of an ``.npz`` file, which hold no NaN and no infinity."""
    with reading(file, source), file.open("rb") as stream, np.load(stream) as archive:  # np.load leaves a cut file open
        found = {name: archive[name] for name in names}
        for name, values in found.items():
            check_finite(name, values)
        return found


def array(file: Path, source: str) -> np.ndarray:
    """The array of an ``.npy`` file, which holds no NaN and no infinity."""
    with reading(file, source):
        found = np.asarray(np.load(file))
        check_finite("the array", found)
        return found


def table(
    file: Path, source: str, columns: int, *, dtype: type = np.int64, delimiter: str | None = None, skip: int = 0
) -> Tensor:
    """Rows of so many finite numbers in a text file, ``[rows, columns]``, after ``skip`` lines."""
    with reading(file, source), warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy only warns of a file without rows
        found: np.ndarray = np.loadtxt(file, dtype=dtype, delimiter=delimiter, skiprows=skip, ndmin=2)
        if found.shape[1] != columns:
            raise ValueError(f"a row has {found.shape[1]} numbers; it must have {columns}")
        check_finite("a row", found)
        return torch.from_numpy(found)


def check_finite(name: str, values: np.ndarray) -> None:
    """Raises ValueError if one of these numbers is NaN or infinite."""
    wrong = values[~np.isfinite(values)]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}; all must be finite")
