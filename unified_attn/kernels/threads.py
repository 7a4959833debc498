"""A thread pool for kernels that release the interpreter lock.

Numba's own parallel loops are not used: its OpenMP layer breaks after a fork, as data loaders do it, and its built-in
layer aborts when two Python threads call at once. Here workers are plain threads that take the next task of a shared
counter; a kernel does so inside of compiled code, and needs the interpreter once. Which worker runs a task cannot show
in the result, since a task writes what no other task reads or writes.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

_MOST_WORKERS = 1024  # a bound that is never met: threads are started when there is a task for them

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_process = 0


def _executor() -> ThreadPoolExecutor:
    """The pool of this process; a forked child has none of its parent's threads and makes its own."""
    global _pool, _pool_process
    with _lock:
        if _pool is None or _pool_process != os.getpid():
            _pool = ThreadPoolExecutor(_MOST_WORKERS, thread_name_prefix="unified_attn")
            _pool_process = os.getpid()
        return _pool


def _forget() -> None:
    """In a forked child: the lock may have been held by a thread that does not exist here."""
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def together(work: Callable[[], None], helpers: int) -> None:
    """Calls ``work`` here, and on as many other threads at once as there are and as are of use.

    Args:
        work: Takes tasks of a common supply until none is left.
        helpers: How many others could find something to do.
    """
    wanted = min(torch.get_num_threads() - 1, helpers)
    if wanted < 1:
        work()
        return
    started: list[Future[None]] = []
    # The interpreter may be shutting down, or no thread can be started: then the caller does it all.
    with contextlib.suppress(RuntimeError):
        started.extend(_executor().submit(work) for _ in range(wanted))
    try:
        work()
    finally:
        # The caller takes part, so a helper that has not begun by now is not needed, and none can be waited for in
        # vain when several callers share the pool.
        errors = [helper.exception() for helper in started if not helper.cancel()]
    for error in errors:
        if error is not None:
            raise error


def each(task: Callable[[int], None], tasks: int) -> None:
    """Runs ``task(0)`` to ``task(tasks - 1)``, several at once."""
    counter = itertools.count()  # next() on it is atomic

    def work() -> None:
        while (index := next(counter)) < tasks:
            task(index)

    together(work, tasks - 1)
