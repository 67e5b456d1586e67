"""Scheduling priorities: measuring workers first, then all other processes, then monitoring.

A process that waits for a processor stamps late. Real-time priority needs a privilege. Any process may lower its
priority and ask for short time slices, which Linux (since 6.12) schedules sooner.
"""

import contextlib
import ctypes
import os
from collections.abc import Generator

from bakeoff import system

_FIFO_PRIORITY = 10
_RAISED_NICE, _LOWERED_NICE = -10, 10
_SLICE_NS = 100_000
"""Shortest time slice that Linux grants."""
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class _SchedAttr(ctypes.Structure):
    """The kernel's ``struct sched_attr``, version 0; for ordinary tasks ``runtime`` is the time slice."""

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
    """Pin this process to one core."""
    os.sched_setaffinity(0, {core})


def raise_priority() -> bool:
    """Raise this process above ordinary ones as far as allowed: SCHED_FIFO, else a better nice value and short slices.

    Returns:
        whether it runs at real-time priority.
    """
    if not system.HAS_POLICIES:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _RAISED_NICE)
        return False
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
        return True
    if not short_slices(_RAISED_NICE):
        short_slices(os.getpriority(os.PRIO_PROCESS, 0))
    return False


def lower_priority() -> None:
    """Lower this process below ordinary ones, permanently.

    Not to SCHED_IDLE, which would never run beside an engine that keeps every core busy.
    """
    with contextlib.suppress(OSError):
        if system.HAS_POLICIES:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.nice(_LOWERED_NICE)


@contextlib.contextmanager
def without_preempting() -> Generator[None]:
    """Keep this thread, and processes that it starts, from preempting others while the block runs."""
    if not system.HAS_POLICIES:
        yield
        return
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
    """Set this process's nice value and time slices of 0.1 ms; returns whether the kernel allows it."""
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return False
    attributes = _SchedAttr(size=ctypes.sizeof(_SchedAttr), nice=nice, runtime=_SLICE_NS)
    return ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0) == 0
