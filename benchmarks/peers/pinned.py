"""Become another program on one core: ``python -m benchmarks.peers.pinned CORE alone|crowd PROGRAM [ARGUMENT...]``.

What the program starts inherits the core and the priority. As root, a program that is ``alone`` gets real-time
priority; a ``crowd`` of processes gets nice -15 and short time slices, because at real-time priority one of them would
run until it waits. Without root both run as they are.
"""

import contextlib
import ctypes
import os
import sys

_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_NICE, _SLICE_NS = -15, 100_000
_PRIORITY = 5


class _SchedAttr(ctypes.Structure):
    """The kernel's ``struct sched_attr``, version 0; ``runtime`` is the slice of an ordinary task since Linux 6.12."""

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


def short_slices() -> bool:
    """Nice -15 and slices of 0.1 ms; returns whether the kernel agreed."""
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return False
    attributes = _SchedAttr(size=ctypes.sizeof(_SchedAttr), nice=_NICE, runtime=_SLICE_NS)
    return ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0) == 0


def main() -> None:
    core, company, *command = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    with contextlib.suppress(PermissionError):
        if company == "alone":
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        elif not short_slices():
            os.nice(_NICE)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
