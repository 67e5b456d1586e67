"""What the C library is told about memory."""

import ctypes

_M_ARENA_MAX = -8  # malloc.h of glibc


def share_one_arena() -> bool:
    """Let all threads of this process take memory from one place; returns whether the C library does.

    glibc gives each thread an arena of its own, and what a thread frees stays in its arena. A server whose texts are
    taken apart in many threads grows by that for half an hour: from 190 to 255 MiB in eight minutes of
    `benchmarks/engine/soak.py`, against 150 to 158 with one arena. To be called before there are threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none, nor arenas
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))
