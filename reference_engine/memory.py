"""What the C library is told about memory. Where it is not glibc, nothing of this exists, and nothing happens."""

import ctypes
import time
from collections.abc import Callable

_M_ARENA_MAX = -8  # malloc.h of glibc
_PATIENCE_S = 60.0


def share_one_arena() -> bool:
    """Let all threads of this process take memory from one place; returns whether the C library does.

    glibc gives each thread an arena of its own, and what a thread frees stays in its arena. A server whose texts are
    taken apart in many threads grows by that for half an hour: from 190 to 255 MiB in eight minutes of
    `benchmarks/engine/soak.py`, against 150 to 158 with one arena. To be called before there are threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))


class FreedMemory:
    """Gives freed memory back to the system, once a minute.

    Tensors of every batch size leave holes of every size, which the C library keeps; without this the engine's process
    grows by a tenth in a quarter of an hour, until it has met every mix of requests.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def give_back(self) -> bool:
        """To be called between steps; returns whether it was time. It takes milliseconds then."""
        if self._trim is None or self._clock() - self._since_s < _PATIENCE_S:
            return False
        self._trim(0)
        self._since_s = self._clock()
        return True
