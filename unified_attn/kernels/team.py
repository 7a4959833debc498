"""What each thread of a team does: take task after task until none is left. Needs numba."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from unified_attn._compiling import of_integers
from unified_attn.kernels.csr_pair import STAMP
from unified_attn.kernels.lanes import call, peek_int64, take


@lru_cache(None)
def make() -> Any:
    """The function ``(team)`` of the address of seven numbers.

    They are: the next task, one after the last, the kernel ``(args, scratch, number)``, its args, how many threads have
    come, the first one's scratch, and bytes of scratch a thread.
    """
    stamp = STAMP

    @of_integers
    def enter(team):  # type: ignore[no-untyped-def]
        last, kernel, args = peek_int64(team + 8), peek_int64(team + 16), peek_int64(team + 24)
        scratch = peek_int64(team + 40) + take(team + 32) * peek_int64(team + 48)
        if last + stamp < 0:
            return
        number = take(team)
        while number < last:
            call(kernel, args, scratch, number)
            number = take(team)

    return enter
