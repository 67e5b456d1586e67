"""Keep a measuring process from being moved or preempted."""

import contextlib
import os


def claim_core(core: int, *, realtime: bool) -> bool:
    """Pin this process to ``core`` and, when ``realtime`` and allowed (root), give it SCHED_FIFO.

    Returns:
        whether it runs at real-time priority.
    """
    os.sched_setaffinity(0, {core})
    if not realtime:
        return False
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        return True
    return False
