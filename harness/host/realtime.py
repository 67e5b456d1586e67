"""Who gets a processor first: the worker that measures, then everybody else, then what only watches.

A process that waits for a processor stamps late. Real-time priority is for root and whoever may set it; everybody may
step back, and ask for short slices of time, which Linux (since 6.12) gives sooner.
"""

import contextlib
import ctypes
import os
from collections.abc import Generator

_FIFO_PRIORITY = 10
_RAISED_NICE, _LOWERED_NICE = -10, 10
_SLICE_NS = 100_000
"""Of the shortest that Linux grants."""
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class _SchedAttr(ctypes.Structure):
    """The kernel's ``struct sched_attr``, version 0; ``runtime`` is the slice of an ordinary task."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def claim_core(core: int) -> None:
    """Keep this process to one core."""
    os.sched_setaffinity(0, {core})


def go_first() -> bool:
    """Put this process before ordinary ones, as far as it may: SCHED_FIFO, else a better nice value and short slices.

    Returns:
        whether it runs at real-time priority.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
        return True
    if not short_slices(_RAISED_NICE):
        short_slices(os.getpriority(os.PRIO_PROCESS, 0))
    return False


def go_last() -> None:
    """Put this process after ordinary ones, for good.

    Not as far as SCHED_IDLE, which would never run beside an engine that keeps every core busy.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.nice(_LOWERED_NICE)


@contextlib.contextmanager
def stepping_back() -> Generator[None]:
    """Let this thread preempt nobody while the block runs; what it starts meanwhile inherits that."""
    before = os.sched_getscheduler(0)
    with contextlib.suppress(OSError):
        if before == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if before == os.SCHED_OTHER:
                os.sched_setscheduler(0, before, os.sched_param(0))


def short_slices(nice: int) -> bool:
    """Give this process a nice value and slices of 0.1 ms; returns whether the kernel agreed."""
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return False
    attributes = _SchedAttr(size=ctypes.sizeof(_SchedAttr), nice=nice, runtime=_SLICE_NS)
    return ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0) == 0
