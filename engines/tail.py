"""The last log lines of a process, and its exit status as text."""

import signal
from collections import deque
from pathlib import Path

from bakeoff.engines.secrets import masked


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a text file, with undecodable bytes replaced and secrets masked; empty without a file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        return [masked(line.rstrip("\n")) for line in deque(file, lines)]


def status_text(status: int) -> str:
    """``exit status 3``; ``signal 9`` for a shell's 137 and for Python's -9."""
    number = -status if status < 0 else status - 128
    return f"signal {number}" if 0 < number <= signal.NSIG else f"exit status {status}"
