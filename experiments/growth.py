"""By how much a step lets a process grow, measured in a process of its own."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


def status(key: str) -> int:
    """An entry of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def grown(step: Callable[[], object]) -> int:
    """Bytes by which the peak of this process lies above what it holds before the step."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    step()
    return status("VmHWM") - before


def in_fresh_process(measure: Callable[Arguments, int], *args: Arguments.args, **kwargs: Arguments.kwargs) -> int:
    """What ``measure`` returns in a new process.

    Raises:
        MemoryError: If that runs out of memory.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        try:
            return fresh.submit(measure, *args, **kwargs).result()
        except BrokenProcessPool as error:  # the system ended it
            raise MemoryError(str(error)) from error
        except RuntimeError as error:
            if "allocate memory" in str(error):  # torch has no error of its own for that
                raise MemoryError(str(error)) from error
            raise


def limit(num_bytes: int) -> None:
    """From here on this process cannot have more than so many bytes beside those that it has."""
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + num_bytes, resource.RLIM_INFINITY))
