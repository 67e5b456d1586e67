"""Processes in /proc, read ten times a second at little cost.

Files stay open: one system call reads them, and they never show another process that has got the same pid. The search
for new processes runs once a second, and only if any process has been started since.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import psutil

_SEARCH_NS = 1_000_000_000
_SEARCH_ANYWAY_NS = 10_000_000_000
"""Search at least this often: some sandboxes do not show that processes were started."""
_MAX_BYTES = 4096
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110  (needs CONFIG_PROC_CHILDREN)


class ProcFile:
    """A small file of /proc that stays open.

    Raises:
        OSError: it does not exist.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """Its current first 4 KiB.

        Raises:
            OSError: the process has ended.
        """
        return os.pread(self._file, _MAX_BYTES, 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class ProcessStat(NamedTuple):
    """State of one process; times are in clock ticks (``SC_CLK_TCK``).

    Attributes:
        parent: pid of its parent.
        state: one letter, as in ps.
        started: time since boot.
        own: user and system time.
        waited: user and system time of ended children that it has waited for.
        rss_pages: resident memory in pages.
    """

    parent: int
    state: str
    started: int
    own: int
    waited: int
    rss_pages: int

    @classmethod
    def of(cls, line: bytes) -> "ProcessStat":
        """Parse ``/proc/PID/stat``; the process name in it may contain any character."""
        fields = line.rpartition(b")")[2].split()
        own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        return cls(int(fields[1]), fields[0].decode(), int(fields[19]), own, waited, int(fields[21]))


class ProcessTree:
    """Processes and all their descendants, including those that have another parent by now.

    Args:
        roots: pids of the first processes.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = tuple(roots)
        self._files: dict[int, ProcFile] = {}
        self._newest = ProcFile("/proc/loadavg")
        self._newest_pid = b""
        self._search_ns = self._search_anyway_ns = 0

    def add(self, root: int) -> None:
        """Read another process and its descendants, too."""
        self._roots = (*self._roots, root)
        self._search_ns = self._search_anyway_ns = 0

    def read(self, t_ns: int) -> dict[int, ProcessStat]:
        """Processes by pid, without those started after the last search, and with zombies (state Z)."""
        if t_ns >= self._search_ns:
            self._search_ns = t_ns + _SEARCH_NS
            self._search(t_ns)
        stats: dict[int, ProcessStat] = {}
        for pid, file in list(self._files.items()):
            try:
                stats[pid] = ProcessStat.of(file.read())
            except OSError:
                self._files.pop(pid).close()
        return stats

    def close(self) -> None:
        """Close every file."""
        for file in (self._newest, *self._files.values()):
            file.close()
        self._files.clear()

    def _search(self, t_ns: int) -> None:
        newest_pid = self._newest.read().rpartition(b" ")[2]
        if newest_pid == self._newest_pid and t_ns < self._search_anyway_ns:
            return
        self._newest_pid, self._search_anyway_ns = newest_pid, t_ns + _SEARCH_ANYWAY_NS
        pending = [*self._roots, *self._files]
        pids: set[int] = set()
        while pending:
            pid = pending.pop()
            if pid in pids:
                continue
            pids.add(pid)
            with contextlib.suppress(OSError):
                if pid not in self._files:
                    self._files[pid] = ProcFile(f"/proc/{pid}/stat")
                pending += _children(pid)


def _children(pid: int) -> Iterator[int]:
    """Pids of a process's children; each is listed under the thread that started it."""
    if not _LISTS_CHILDREN:
        with contextlib.suppress(psutil.Error):
            yield from (child.pid for child in psutil.Process(pid).children())
        return
    for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  (a third of the time of Path.iterdir)
        with contextlib.suppress(OSError):
            file = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY)
            try:
                yield from map(int, os.read(file, 1 << 16).split())
            finally:
                os.close(file)
