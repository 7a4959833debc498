"""Runs the tasks of a kernel on several threads at once, inside of compiled code.

Numba's own parallel loops are not used: its OpenMP layer breaks after a fork, as data loaders do it, and its built-in
layer aborts when two Python threads call at once. Here the threads are those that torch runs its own operators with, an
OpenMP team: after a matrix product they are still awake, where threads of our own would first have to be woken, and
then compete with torch's for the cores. In a forked child, where the parent's team is missing and OpenMP would wait for
it forever, and where torch comes without OpenMP, Python's threads do the same. Which thread runs a task cannot show in
the result, since a task writes what no other task reads or writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

_MOST_WORKERS = 1024  # a bound that is never met: threads are started when there is a task for them
_LINES = 128  # bytes: no two threads write to one line of the cache, nor to its neighbour, which is fetched with it

_RECORD = struct.Struct("=7q")  # what a team is told: see ``team``
_Record = ctypes.c_char * _RECORD.size

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_forked = _teamed = False
_scratch = threading.local()


def _forget() -> None:
    """In a forked child: the lock may have been held by a thread that does not exist here, and no team does.

    Torch's own operators would wait for the team that we started; on one thread, as in a data loader's workers, they
    do not ask for one.
    """
    global _lock, _pool, _forked
    _lock, _pool, _forked = threading.Lock(), None, True
    if _teamed:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run(kernel: int, args: int, tasks: int, *, scratch_bytes: int = 0, alone: bool = False) -> None:
    """Calls ``kernel(args, scratch, number)`` for each number from 0 to ``tasks - 1``.

    Args:
        kernel: Address of a C function of three 64-bit integers, as :func:`~unified_attn._compiling.of_integers` makes.
        args: Its first argument.
        tasks: How many.
        scratch_bytes: Bytes of memory that a thread gets to itself, at the address that is the second argument.
        alone: Do it all in the calling thread, since waking others would take longer.
    """
    enter = _enter()
    workers = 1 if alone or tasks < 2 else torch.get_num_threads()
    each = -(-scratch_bytes // _LINES) * _LINES
    record = _Record()
    _RECORD.pack_into(record, 0, 0, tasks, kernel, args, 0, _memory(workers * each), each)
    place = ctypes.addressof(record)
    if workers == 1:
        enter.ctypes(place)
        return
    global _teamed
    openmp = None if _forked else _openmp()
    if openmp is not None:
        _teamed = True
        openmp(enter.address, place, workers, 0)
    else:
        _by_python(functools.partial(enter.ctypes, place), min(workers, tasks) - 1)


def words(*numbers: int) -> Any:
    """A record of 64-bit integers, for ``ctypes.addressof``."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


@functools.cache
def _enter() -> Any:
    from unified_attn.kernels.team import make

    return make()


@functools.cache
def _openmp() -> Callable[[int, int, int, int], None] | None:
    """``GOMP_parallel(function, data, threads, flags)``, what a parallel region is compiled to; None without it.

    GNU's library, LLVM's and Intel's have it.
    """
    try:
        function: Any = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # no such symbol, or no such way to look for one
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function  # type: ignore[no-any-return]


def _by_python(work: Callable[[], None], helpers: int) -> None:
    """Calls ``work`` here, and on as many other threads at once."""
    started: list[Future[None]] = []
    # The interpreter may be shutting down, or no thread can be started: then the caller does it all.
    with contextlib.suppress(RuntimeError):
        started.extend(_executor().submit(work) for _ in range(helpers))
    try:
        work()
    finally:
        # The caller takes part, so a helper that has not begun by now is not needed, and none can be waited for in
        # vain when several callers share the pool.
        errors = [_waited(helper) for helper in started if not helper.cancel()]
    for error in errors:
        if error is not None:
            raise error


def _waited(helper: Future[None]) -> BaseException | None:
    """Waits whatever comes, since the helper uses the caller's memory; returns what came."""
    came: BaseException | None = None
    while True:
        try:
            return helper.exception() or came
        except KeyboardInterrupt as interrupt:
            came = interrupt


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_MOST_WORKERS, thread_name_prefix="unified_attn")
        return _pool


def _memory(size: int) -> int:
    """The address of so many bytes that belong to the calling thread, and to what it starts and waits for."""
    address: int = getattr(_scratch, "address", 0)
    if getattr(_scratch, "size", -1) < size:
        block = ctypes.create_string_buffer(size + _LINES)
        address = -(-ctypes.addressof(block) // _LINES) * _LINES
        _scratch.block, _scratch.size, _scratch.address = block, size, address
    return address
