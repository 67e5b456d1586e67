"""Cumulative CPU time of all cores: unused time, and the time of our own processes.

The rest is foreign load (:func:`bakeoff.results.metrics.machine.foreign_cpu_share`). The kernel counts idle time
exactly but samples user and system time, so the machine-wide counter is unused time, not busy time. Time in interrupts
counts as unused, since the kernel does not attribute it to a process. Stolen time is in neither counter, so it is
foreign.
"""

from collections.abc import Iterable, Mapping

import psutil

from bakeoff.harness.host.processes import ProcessStat, ProcessTree
from bakeoff.results.records import TelemetryRecord

UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, TypeError)
"""What psutil raises where the system does not show its counters, or shows others than psutil expects."""


class CpuProbe:
    """Reads both counters at one instant.

    Args:
        roots: roots of our own process trees: the harness, and the engine.
        unknown: why the engine's processes are not known; None if they are.
    """

    def __init__(self, roots: Iterable[int], unknown: str | None = None) -> None:
        self._own = TreeTime(roots)
        self._unknown = unknown
        self._cores: int | None = None

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``cores``; ``unused_s`` and ``own_s``, cumulative over all cores and monotonic."""
        try:
            if self._cores is None:  # those that the times are of: a cpuset would lower os.cpu_count()
                self._cores = len(psutil.cpu_times(percpu=True))
            times = psutil.cpu_times()
        except UNREADABLE as error:
            reason = f"{type(error).__name__}: {error}"
            return [TelemetryRecord(t_ns, "cpu", {"unused_s": None}, {"unused_s": reason})]
        unused = (getattr(times, name, 0.0) for name in ("idle", "iowait", "irq", "softirq"))  # macOS has idle alone
        values: dict[str, float | int | str | None] = {"cores": self._cores, "unused_s": sum(unused)}
        if self._unknown is not None:
            return [TelemetryRecord(t_ns, "cpu", {**values, "own_s": None}, {"own_s": self._unknown})]
        return [TelemetryRecord(t_ns, "cpu", {**values, "own_s": self._own.read_s(t_ns)})]

    def close(self) -> None:
        """Close its files."""
        self._own.close()


class TreeTime:
    """Monotonic CPU time of process trees whose processes come and go.

    Children are read before their parents, so the time of a child that ends in between is in its parent's ``waited_s``.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._tree = ProcessTree(roots)
        self._last: dict[int, ProcessStat] = {}
        self._lost_s = 0.0

    def read_s(self, t_ns: int) -> float:
        """Seconds so far; all time of a process that began after the last search counts from the next search on."""
        now = self._tree.read(t_ns)
        self._lost_s += _not_inherited_s(self._last, now)
        self._last = now
        return self._lost_s + sum(stat.own_s + stat.waited_s for stat in now.values())

    def close(self) -> None:
        """Close its files."""
        self._tree.close()


def _not_inherited_s(last: Mapping[int, ProcessStat], now: Mapping[int, ProcessStat]) -> float:
    """Time of ended processes that is not in a parent's ``waited_s``, because the parent does not wait for children.

    A parent that waits gets all time of its child, including that after our last reading of the child.
    """
    ended = {pid: stat for pid, stat in last.items() if pid not in now}
    bequeathed: dict[int, float] = {}
    for stat in ended.values():
        heir = stat.parent
        while heir in ended:
            heir = ended[heir].parent
        bequeathed[heir] = bequeathed.get(heir, 0.0) + stat.own_s + stat.waited_s
    inherited = {
        heir: now[heir].waited_s - (last[heir].waited_s if heir in last else 0.0) for heir in bequeathed if heir in now
    }
    return sum(max(0.0, time_s - inherited.get(heir, 0.0)) for heir, time_s in bequeathed.items())
