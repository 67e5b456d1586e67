"""What the operating system gives to a process: Linux all of it, macOS and other POSIX systems a part.

A run measures without what is missing. A figure that needs it is absent, with a reason.
"""

import os
import resource
import select
import sys
from pathlib import Path

import psutil

CAN_LAUNCH = hasattr(os, "pidfd_open")
"""Whether a process can be held by a handle, so that an engine that is launched ends with us, whatever happens."""
CAN_BIND = hasattr(os, "sched_setaffinity")
"""Whether a process can be bound to cores."""
HAS_EPOLL = hasattr(select, "epoll")
"""Whether the kernel tells which of many descriptors are ready without reading through all of them."""
HAS_POLICIES = hasattr(os, "sched_setscheduler")
"""Whether a process has a scheduling policy beside its nice value."""
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def proc() -> Path | None:
    """The proc file system, at ``psutil.PROCFS_PATH``; None if there is none."""
    path = getattr(psutil, "PROCFS_PATH", None)  # psutil has it where there may be one
    try:
        os.close(os.open(f"{path or '/proc'}/stat", os.O_RDONLY))
    except OSError:
        return None
    return Path(path or "/proc")


def usable_cores() -> list[int]:
    """The cores that this process may use, in order: all of the machine where it cannot be bound to some."""
    return sorted(os.sched_getaffinity(0)) if CAN_BIND else list(range(os.cpu_count() or 1))


def peak_rss_bytes() -> int:
    """Peak memory of this program. On Linux ``ru_maxrss`` would include the parent's, which fork passes on."""
    if (files := proc()) is not None:
        for line in (files / "self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):  # not in every sandbox
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES
