"""Executes a program on one core: ``python -m benchmarks.peers.pinned CORE alone|crowd PROGRAM [ARGUMENT...]``.

The program's children inherit the core and the priority. As root, a program that is ``alone`` gets real-time priority;
a ``crowd`` of processes gets nice -15 and short time slices, because at real-time priority one of them would run until
it waits. Without root the priority does not change.
"""

import contextlib
import os
import sys

from bakeoff.harness.host.realtime import short_slices

_NICE, _PRIORITY = -15, 5


def main() -> None:
    core, kind, *command = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    with contextlib.suppress(PermissionError):
        if kind == "alone":
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        elif not short_slices(_NICE):
            os.nice(_NICE)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
