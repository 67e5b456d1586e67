"""Cumulative counters of the cores' time: what no process used, and what our own processes used.

The rest is foreign load (:func:`results.metrics.machine.foreign_cpu_share`). The kernel counts idle time exactly but
samples user and system time, so the counter of the whole machine is the unused time and not the busy time. Time in
interrupts counts as unused, since the kernel does not say for whom it was. Stolen time is in neither counter: foreign.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from results.records import TelemetryRecord

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SEARCH_NS = 1_000_000_000
"""Finding new processes reads all of /proc; the known ones are read at each tick."""
_LONGEST_STAT_BYTES = 2048
_IDLE, _IOWAIT, _IRQ, _SOFTIRQ = 3, 4, 5, 6


class ProcessTime(NamedTuple):
    """One process; ``waited`` is the time of children that have ended and been waited for. Times are in clock ticks."""

    parent: int
    started: int
    own: int
    waited: int


class CpuProbe:
    """Reads both counters at one instant.

    Args:
        roots: first processes of the trees that are our own: the harness with all its children, and the engine.
        unknown: why the engine's processes are not known; None where they are.
        proc: where the kernel's files are.
    """

    def __init__(self, roots: Iterable[int], unknown: str | None = None, proc: Path = PROC) -> None:
        self._own = TreeTime(roots, proc)
        self._unknown = unknown
        self._stat = proc / "stat"

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``cores``; ``unused_s`` and ``own_s``, cumulative over all cores and never falling."""
        try:
            unused_s, cores = _unused(self._stat.read_text(encoding="ascii"))
        except (OSError, ValueError, IndexError) as error:
            return [TelemetryRecord(t_ns, "cpu", {"unused_s": None}, {"unused_s": f"{self._stat}: {error}"})]
        values: dict[str, float | int | str | None] = {"cores": cores, "unused_s": unused_s}
        if self._unknown is not None:
            return [TelemetryRecord(t_ns, "cpu", {**values, "own_s": None}, {"own_s": self._unknown})]
        return [TelemetryRecord(t_ns, "cpu", {**values, "own_s": self._own.read_s(t_ns)})]


class TreeTime:
    """CPU time of process trees that never falls, whichever of their processes begin and end.

    Children are read before their parents: one that has gone by then is in what its parent is read to have waited for.
    """

    def __init__(self, roots: Iterable[int], proc: Path = PROC) -> None:
        self._roots = frozenset(roots)
        self._proc = proc
        self._last: dict[int, ProcessTime] = {}
        self._lost = 0
        self._search_ns = 0

    def read_s(self, t_ns: int) -> float:
        """Seconds so far; a process that began since the last search counts from the next one on, with all its time."""
        if t_ns >= self._search_ns:
            self._search_ns = t_ns + _SEARCH_NS
            now = self._search()
        else:
            now = {pid: time for pid in sorted(self._last, reverse=True) if (time := self._still(pid))}
        self._lost += _not_inherited(self._last, now)
        self._last = now
        return (self._lost + sum(time.own + time.waited for time in now.values())) / _TICKS_PER_S

    def _still(self, pid: int) -> ProcessTime | None:
        """None where the process has ended, also when another has its number now."""
        time = read_process(pid, self._proc)
        return time if time and time.started == self._last[pid].started else None

    def _search(self) -> dict[int, ProcessTime]:
        """The trees as they are, and what was in them before but has another parent now."""
        everything = {
            pid: time
            for name in reversed(os.listdir(self._proc))  # noqa: PTH208  (a third of the time of Path.iterdir)
            if name.isdigit() and (time := read_process(pid := int(name), self._proc))
        }
        children: dict[int, list[int]] = {}
        for pid, time in everything.items():
            children.setdefault(time.parent, []).append(pid)
        earlier = {p for p, last in self._last.items() if p in everything and everything[p].started == last.started}
        waiting, members = list(self._roots | earlier), dict[int, ProcessTime]()
        while waiting:
            pid = waiting.pop()
            if pid in everything and pid not in members:
                members[pid] = everything[pid]
                waiting += children.get(pid, [])
        return members


def read_process(pid: int, proc: Path = PROC) -> ProcessTime | None:
    """The times of one process; None where there is none of this number."""
    try:
        file = os.open(f"{proc}/{pid}/stat", os.O_RDONLY)  # a third of the time of Path.read_bytes
    except OSError:
        return None
    try:
        fields = os.read(file, _LONGEST_STAT_BYTES).rpartition(b")")[2].split()  # the name may hold anything
    except ProcessLookupError:  # it ended just now
        return None
    finally:
        os.close(file)
    own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return ProcessTime(int(fields[1]), int(fields[19]), own, waited)


def _not_inherited(last: Mapping[int, ProcessTime], now: Mapping[int, ProcessTime]) -> int:
    """Ticks of processes that have ended and whose parent did not get them, because it does not wait for its children.

    What a parent did get is in its ``waited``, including what a child used after it was read for the last time.
    """
    ended = {pid: time for pid, time in last.items() if pid not in now or now[pid].started != time.started}
    left: dict[int, int] = {}
    for time in ended.values():
        heir = time.parent
        while heir in ended:
            heir = ended[heir].parent
        left[heir] = left.get(heir, 0) + time.own + time.waited
    got = {heir: now[heir].waited - (last[heir].waited if heir in last else 0) for heir in left if heir in now}
    return sum(max(0, ticks - got.get(heir, 0)) for heir, ticks in left.items())


def _unused(stat: str) -> tuple[float, int]:
    """Seconds over all cores in which no process ran, and the number of cores."""
    lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    total = [int(field) for field in lines[0][1:]]
    return sum(total[i] for i in (_IDLE, _IOWAIT, _IRQ, _SOFTIRQ)) / _TICKS_PER_S, len(lines) - 1
