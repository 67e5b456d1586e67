"""What an engine leaves running when its guard was killed: the one case in which the guard cannot see to it.

Every engine is started with a mark in its environment, which whatever it starts inherits; and it is the leader of a
session, which its children belong to unless they leave it. A process that has left the session and written over its
own environment is not found.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "BAKEOFF_LAUNCH"
"""Name of the variable."""


def kill_remains(mark: str, session: int | None, within_s: float = 5.0) -> int:
    """Kill whatever an engine left, and wait for its end.

    Args:
        mark: of the launch.
        session: that it was given; None where it never ran.
        within_s: how long that may take; what comes to life meanwhile is killed too.

    Returns:
        How many processes were killed.
    """
    deadline = time.monotonic() + within_s
    killed = 0
    while time.monotonic() < deadline:
        found = list(_remains(f"{MARK}={mark}".encode(), session))
        if not found:
            break
        killed += sum(_kill(pid, deadline) for pid in found)
    return killed


def _remains(mark: bytes, session: int | None) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            state, _, _, sid = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:4]
            belongs = int(sid) == session or mark in (entry / "environ").read_bytes().split(b"\0")
            if belongs and state not in "ZX":
                yield int(entry.name)


def _kill(pid: int, deadline: float) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
    except OSError:  # it is gone, or another user's
        return False
    finally:
        os.close(fd)
