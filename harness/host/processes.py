"""Processes, read at so little cost that ten readings a second disturb nothing.

Files of /proc stay open: one system call reads them, and they never show another process that has got the same pid. The
search for new processes runs once a second, and only if any process has been started since. Without /proc, psutil reads
each process.
"""

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from bakeoff import system

_SEARCH_NS = 1_000_000_000
_SEARCH_ANYWAY_NS = 10_000_000_000
_MAX_BYTES = 4096
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """State of one process.

    Attributes:
        parent: pid of its parent.
        has_ended: whether only its parent's wait for it is missing.
        is_stopped: whether a signal or a debugger stopped it.
        own_s: user and system time since it began.
        waited_s: user and system time of ended children that it has waited for.
        rss_bytes: resident memory.
    """

    parent: int
    has_ended: bool
    is_stopped: bool
    own_s: float
    waited_s: float
    rss_bytes: int

    @classmethod
    def of(cls, line: bytes) -> "ProcessStat":
        """Parse ``/proc/PID/stat``; the process name in it may contain any character."""
        fields = line.rpartition(b")")[2].split()
        own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        return cls(
            int(fields[1]), fields[0] in {b"Z", b"X"}, fields[0] in {b"T", b"t"},
            own / _TICKS_PER_S, waited / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES,
        )  # fmt: skip


class _StatFile:
    """``/proc/PID/stat``, kept open, which is never of another process that has got the same pid.

    Raises:
        OSError: there is no such process.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> ProcessStat:
        """Its current state.

        Raises:
            OSError: it was waited for.
        """
        line = os.pread(self._file, _MAX_BYTES, 0)
        if not line:
            raise ProcessLookupError
        return ProcessStat.of(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class _PsutilProcess:
    """The same by psutil. macOS shows neither a zombie nor the times of ended children, which are 0 here."""

    def __init__(self, pid: int) -> None:
        with _as_os_error():
            self._process = psutil.Process(pid)

    def read(self) -> ProcessStat:
        with _as_os_error(), self._process.oneshot():
            if not self._process.is_running():
                raise ProcessLookupError
            status, times = self._process.status(), self._process.cpu_times()
            return ProcessStat(
                self._process.ppid(),
                status == psutil.STATUS_ZOMBIE,
                status in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP},
                times.user + times.system,
                times.children_user + times.children_system,
                self._process.memory_info().rss,
            )

    def close(self) -> None: ...


@contextlib.contextmanager
def _as_os_error() -> Generator[None]:
    try:
        yield
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from error


class ProcessTree:
    """Processes and all their descendants, including those that have another parent by now.

    Args:
        roots: pids of the first processes.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = tuple(roots)
        self._proc = system.proc()
        self._processes: dict[int, _StatFile | _PsutilProcess] = {}
        self._newest_pid: int | None = None
        self._search_ns = self._search_anyway_ns = 0

    def add(self, root: int) -> None:
        """Read another process and its descendants, too."""
        self._roots = (*self._roots, root)
        self._search_ns = self._search_anyway_ns = 0

    def read(self, t_ns: int) -> dict[int, ProcessStat]:
        """Processes by pid, without those started after the last search, and with those that have ended.

        Children are read before their parents, unless pids were used again.
        """
        if t_ns >= self._search_ns:
            self._search_ns = t_ns + _SEARCH_NS
            self._search(t_ns)
        return self._read()

    def _read(self) -> dict[int, ProcessStat]:
        stats: dict[int, ProcessStat] = {}
        for pid in sorted(self._processes, reverse=True):
            try:
                stats[pid] = self._processes[pid].read()
            except OSError:
                self._processes.pop(pid).close()
        return stats

    def close(self) -> None:
        """Close every file."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    def _search(self, t_ns: int) -> None:
        newest_pid = self._newest()
        if newest_pid is not None and newest_pid == self._newest_pid and t_ns < self._search_anyway_ns:
            return
        self._newest_pid, self._search_anyway_ns = newest_pid, t_ns + _SEARCH_ANYWAY_NS
        self._read()  # drops those that have ended, whose pids may be in use again
        pending = [*self._roots, *self._processes]
        pids: set[int] = set()
        while pending:
            pid = pending.pop()
            if pid in pids:
                continue
            pids.add(pid)
            with contextlib.suppress(OSError):
                if pid not in self._processes:
                    self._processes[pid] = self._opened(pid)
                pending += _children(pid, self._proc)

    def _newest(self) -> int | None:
        """The pid that was given last on this machine; None if the system does not say."""
        if self._proc is None:
            return None
        try:
            newest = int((self._proc / "loadavg").read_bytes().rpartition(b" ")[2])
        except (OSError, ValueError):
            return None
        return newest if newest >= os.getpid() else None  # a sandbox shows 0, or pids have begun again

    def _opened(self, pid: int) -> _StatFile | _PsutilProcess:
        return _PsutilProcess(pid) if self._proc is None else _StatFile(f"{self._proc}/{pid}/stat")


def _children(pid: int, proc: Path | None) -> Iterator[int]:
    """Pids of a process's children; each is listed under the thread that started it."""
    if proc is None or not (proc / f"{pid}/task/{pid}/children").exists():  # needs CONFIG_PROC_CHILDREN
        with contextlib.suppress(psutil.Error):
            yield from (child.pid for child in psutil.Process(pid).children())
        return
    for thread in os.listdir(f"{proc}/{pid}/task"):  # noqa: PTH208  (a third of the time of Path.iterdir)
        with contextlib.suppress(OSError):
            file = os.open(f"{proc}/{pid}/task/{thread}/children", os.O_RDONLY)
            try:
                yield from map(int, os.read(file, 1 << 16).split())
            finally:
                os.close(file)
