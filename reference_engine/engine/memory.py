"""Memory settings of libraries. Without glibc, or with a torch without oneDNN, they have no effect."""

import ctypes
import os
import time
from collections.abc import Callable

_M_ARENA_MAX = -8  # malloc.h of glibc
_PATIENCE_S = 2.0


def share_one_arena() -> bool:
    """Let all threads of this process allocate from one malloc arena; returns whether the C library can.

    glibc gives each thread an arena of its own, and memory that a thread frees stays in its arena. A server that
    tokenizes texts in many threads therefore grows for half an hour: from 190 to 255 MiB in eight minutes of
    `tests/acceptance/engine/soak.py`, against 150 to 158 with one arena. Call it before any thread starts.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))


def keep_few_multiplications() -> None:
    """Let oneDNN, and torch's layer above it, keep 256 compiled multiplications each instead of 1,024.

    Both compile one for each number of rows, which changes in every step of continuous batching. One takes 0.3 ms to
    compile and 0.3 to 0.5 MB to keep: the engine's process grew by 165 MiB in five minutes of
    `tests/acceptance/engine/soak.py` and was still growing. With the limit 50 numbers of rows are kept; others are
    compiled again, five in each step. Settings of the environment have precedence. Call it before the first
    multiplication.
    """
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "256")


class FreedMemory:
    """Gives freed memory back to the system, at most every two seconds.

    Tensors of every batch size leave holes of every size, which the C library keeps; without this the engine's process
    grows by a tenth in a quarter of an hour, until it has met every mix of requests. Every ten seconds was too seldom:
    the process then varied by a twentieth of its size with the largest mix of those ten seconds, while 1,100 MiB were
    in use throughout. A process that is never idle keeps its holes, which the mixes it has met bound.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def give_back(self) -> bool:
        """Gives memory back if that is due; returns whether it was. Call it while idle: it took 13 ms in the soak."""
        if self._trim is None or self._clock() - self._since_s < _PATIENCE_S:
            return False
        self._trim(0)
        self._since_s = self._clock()
        return True
