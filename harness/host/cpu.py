"""Cumulative CPU time of all cores: unused time, and the time of our own processes.

The rest is foreign load (:func:`bakeoff.results.metrics.machine.foreign_cpu_share`). The kernel counts idle time
exactly but samples user and system time, so the machine-wide counter is unused time, not busy time. Time in interrupts
counts as unused, since the kernel does not attribute it to a process. Stolen time is in neither counter, so it is
foreign.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from bakeoff.results.records import TelemetryRecord

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SEARCH_NS = 1_000_000_000
"""Period of the search for new processes, which reads all of /proc; known ones are read at each tick."""
_LONGEST_STAT_BYTES = 2048
_IDLE, _IOWAIT, _IRQ, _SOFTIRQ = 3, 4, 5, 6


class ProcessTime(NamedTuple):
    """CPU time of one process in clock ticks; ``waited`` is the time of ended children that it has waited for."""

    parent: int
    started: int
    own: int
    waited: int


class CpuProbe:
    """Reads both counters at one instant.

    Args:
        roots: roots of our own process trees: the harness, and the engine.
        unknown: why the engine's processes are not known; None if they are.
        proc: path of the proc file system.
    """

    def __init__(self, roots: Iterable[int], unknown: str | None = None, proc: Path = PROC) -> None:
        self._own = TreeTime(roots, proc)
        self._unknown = unknown
        self._stat = proc / "stat"

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``cores``; ``unused_s`` and ``own_s``, cumulative over all cores and monotonic."""
        try:
            unused_s, cores = _unused(self._stat.read_text(encoding="ascii"))
        except (OSError, ValueError, IndexError) as error:
            return [TelemetryRecord(t_ns, "cpu", {"unused_s": None}, {"unused_s": f"{self._stat}: {error}"})]
        values: dict[str, float | int | str | None] = {"cores": cores, "unused_s": unused_s}
        if self._unknown is not None:
            return [TelemetryRecord(t_ns, "cpu", {**values, "own_s": None}, {"own_s": self._unknown})]
        return [TelemetryRecord(t_ns, "cpu", {**values, "own_s": self._own.read_s(t_ns)})]


class TreeTime:
    """Monotonic CPU time of process trees whose processes come and go.

    Children are read before their parents, so the time of a child that ends in between is in its parent's ``waited``.
    """

    def __init__(self, roots: Iterable[int], proc: Path = PROC) -> None:
        self._roots = frozenset(roots)
        self._proc = proc
        self._last: dict[int, ProcessTime] = {}
        self._lost = 0
        self._search_ns = 0

    def read_s(self, t_ns: int) -> float:
        """Seconds so far; all time of a process that began after the last search counts from the next search on."""
        if t_ns >= self._search_ns:
            self._search_ns = t_ns + _SEARCH_NS
            now = self._search()
        else:
            now = {pid: time for pid in sorted(self._last, reverse=True) if (time := self._unchanged(pid))}
        self._lost += _not_inherited(self._last, now)
        self._last = now
        return (self._lost + sum(time.own + time.waited for time in now.values())) / _TICKS_PER_S

    def _unchanged(self, pid: int) -> ProcessTime | None:
        """The times of a known process; None if it has ended, even if its pid is in use again."""
        time = read_process(pid, self._proc)
        return time if time and time.started == self._last[pid].started else None

    def _search(self) -> dict[int, ProcessTime]:
        """The current trees, and earlier members that have another parent now."""
        processes = {
            pid: time
            for name in reversed(os.listdir(self._proc))  # noqa: PTH208  (a third of the time of Path.iterdir)
            if name.isdigit() and (time := read_process(pid := int(name), self._proc))
        }
        children: dict[int, list[int]] = {}
        for pid, time in processes.items():
            children.setdefault(time.parent, []).append(pid)
        earlier = {p for p, last in self._last.items() if p in processes and processes[p].started == last.started}
        pending, members = list(self._roots | earlier), dict[int, ProcessTime]()
        while pending:
            pid = pending.pop()
            if pid in processes and pid not in members:
                members[pid] = processes[pid]
                pending += children.get(pid, [])
        return members


def read_process(pid: int, proc: Path = PROC) -> ProcessTime | None:
    """The times of one process; None if there is no such process."""
    try:
        file = os.open(f"{proc}/{pid}/stat", os.O_RDONLY)  # a third of the time of Path.read_bytes
    except OSError:
        return None
    try:
        fields = (
            os.read(file, _LONGEST_STAT_BYTES).rpartition(b")")[2].split()
        )  # the process name may contain any character
    except ProcessLookupError:  # it has just ended
        return None
    finally:
        os.close(file)
    own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return ProcessTime(int(fields[1]), int(fields[19]), own, waited)


def _not_inherited(last: Mapping[int, ProcessTime], now: Mapping[int, ProcessTime]) -> int:
    """Ticks of ended processes that are not in a parent's ``waited``, because the parent does not wait for children.

    A parent that waits gets all ticks of its child, including those after our last reading of the child.
    """
    ended = {pid: time for pid, time in last.items() if pid not in now or now[pid].started != time.started}
    bequeathed: dict[int, int] = {}
    for time in ended.values():
        heir = time.parent
        while heir in ended:
            heir = ended[heir].parent
        bequeathed[heir] = bequeathed.get(heir, 0) + time.own + time.waited
    inherited = {
        heir: now[heir].waited - (last[heir].waited if heir in last else 0) for heir in bequeathed if heir in now
    }
    return sum(max(0, ticks - inherited.get(heir, 0)) for heir, ticks in bequeathed.items())


def _unused(stat: str) -> tuple[float, int]:
    """Seconds over all cores in which no process ran, and the number of cores."""
    lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    total = [int(field) for field in lines[0][1:]]
    return sum(total[i] for i in (_IDLE, _IOWAIT, _IRQ, _SOFTIRQ)) / _TICKS_PER_S, len(lines) - 1
