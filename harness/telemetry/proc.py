"""Processes as Linux tells of them in /proc, read ten times a second at little cost.

A file that is read again and again stays open: one system call reads it, and it never shows another process that has
got the same number. New processes are looked for once a second, and only where any process has been started since.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import psutil

_SEARCH_NS = 1_000_000_000
_SEARCH_ANYWAY_NS = 10_000_000_000
"""Some sandboxes do not tell of new processes."""
_MOST_BYTES = 4096
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110  (needs CONFIG_PROC_CHILDREN)


class ProcFile:
    """A small file of /proc that stays open.

    Raises:
        OSError: there is none.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """Its first 4 KiB as they are now.

        Raises:
            OSError: the process has ended.
        """
        return os.pread(self._file, _MOST_BYTES, 0)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


class ProcessStat(NamedTuple):
    """One process; times are in clock ticks (``SC_CLK_TCK``).

    Attributes:
        parent: its parent's number.
        state: a letter, as ps shows it.
        started: since boot.
        own: user and system time of its own.
        waited: that of children that have ended and been waited for.
        rss_pages: memory.
    """

    parent: int
    state: str
    started: int
    own: int
    waited: int
    rss_pages: int

    @classmethod
    def of(cls, line: bytes) -> "ProcessStat":
        """From ``/proc/PID/stat``; the name in it may hold anything."""
        fields = line.rpartition(b")")[2].split()
        own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        return cls(int(fields[1]), fields[0].decode(), int(fields[19]), own, waited, int(fields[21]))


class ProcessTree:
    """Processes and all that descend from them, also those that have another parent by now.

    Args:
        roots: numbers of the first processes.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = tuple(roots)
        self._files: dict[int, ProcFile] = {}
        self._newest = ProcFile("/proc/loadavg")
        self._newest_pid = b""
        self._search_ns = self._search_anyway_ns = 0

    def read(self, t_ns: int) -> dict[int, ProcessStat]:
        """Each by its number. One that was started since the last search is left out until the next.

        One that has ended (state Z) is there until it is reaped.
        """
        if t_ns >= self._search_ns:
            self._search_ns = t_ns + _SEARCH_NS
            self._search(t_ns)
        found: dict[int, ProcessStat] = {}
        for pid, file in list(self._files.items()):
            try:
                found[pid] = ProcessStat.of(file.read())
            except OSError:
                self._files.pop(pid).close()
        return found

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
        waiting = [*self._roots, *self._files]
        seen: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid in seen:
                continue
            seen.add(pid)
            with contextlib.suppress(OSError):
                if pid not in self._files:
                    self._files[pid] = ProcFile(f"/proc/{pid}/stat")
                waiting += _children(pid)


def _children(pid: int) -> Iterator[int]:
    """Numbers of a process's children; each is listed with the thread that started it."""
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
