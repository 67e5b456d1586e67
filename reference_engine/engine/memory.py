"""What libraries are told about memory. Where the C library is not glibc, or torch has no oneDNN, nothing happens."""

import ctypes
import os
import time
from collections.abc import Callable

_M_ARENA_MAX = -8  # malloc.h of glibc
_PATIENCE_S = 2.0


def share_one_arena() -> bool:
    """Let all threads of this process take memory from one place; returns whether the C library does.

    glibc gives each thread an arena of its own, and what a thread frees stays in its arena. A server whose texts are
    taken apart in many threads grows by that for half an hour: from 190 to 255 MiB in eight minutes of
    `benchmarks/engine/soak.py`, against 150 to 158 with one arena. To be called before there are threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))


def keep_few_multiplications() -> None:
    """Let oneDNN, and torch's layer above it, keep 256 compiled multiplications each instead of 1,024.

    Both compile one for each count of rows, which an engine that batches continuously changes with every step. One
    takes 0.3 ms to make and 0.3 to 0.5 MB to keep: the engine's process grew by 165 MiB in five minutes of
    `benchmarks/engine/soak.py`, and had not met all. Those of 50 counts are kept so; others are made anew, five a step.
    What the environment says is left alone. To be called before the first multiplication.
    """
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "256")


class FreedMemory:
    """Gives freed memory back to the system, at most every two seconds.

    Tensors of every batch size leave holes of every size, which the C library keeps; without this the engine's process
    grows by a tenth in a quarter of an hour, until it has met every mix of requests. Every ten seconds was too seldom:
    what the largest mix of that time had taken swayed by a twentieth of the process, of which 1,100 MiB were in use
    throughout. A process that is never idle keeps its holes: they are bounded by the mixes it has met.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def give_back(self) -> bool:
        """Returns whether it was time. Call it while idle: it took 13 ms among the users of the soak."""
        if self._trim is None or self._clock() - self._since_s < _PATIENCE_S:
            return False
        self._trim(0)
        self._since_s = self._clock()
        return True
