"""Kill the processes of an engine whose guard was killed.

Every engine has a mark in its environment, which its children inherit, and leads a session, to which its children
belong unless they leave it. A process that left the session and overwrote its environment is not found.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "BAKEOFF_LAUNCH"
"""Environment variable with the mark."""


def kill_remains(mark: str, session: int | None, within_s: float = 5.0) -> int:
    """Kill an engine's remaining processes and wait until they end.

    Args:
        mark: of the launch.
        session: session id of the engine; None if it never ran.
        within_s: time limit; processes started meanwhile are killed, too.

    Returns:
        Number of killed processes.
    """
    deadline = time.monotonic() + within_s
    killed = 0
    while time.monotonic() < deadline:
        pids = list(_remains(f"{MARK}={mark}".encode(), session))
        if not pids:
            break
        killed += sum(_kill(pid, deadline) for pid in pids)
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
    except OSError:  # it ended, or belongs to another user
        return False
    finally:
        os.close(fd)
