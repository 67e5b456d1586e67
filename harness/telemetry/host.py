"""Readings of the host and of process trees, through psutil."""

import contextlib
from collections.abc import Sequence

import psutil

from results.records import TelemetryRecord

_CHILDREN_REFRESH_NS = 1_000_000_000
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class HostProbe:
    """CPU and memory of the whole machine."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first call only sets the starting point

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``cpu_share`` (1 is all cores busy) since the last reading, ``memory_available_bytes``."""
        values: dict[str, float | int | str | None] = {
            "cpu_share": psutil.cpu_percent() / 100,
            "memory_available_bytes": psutil.virtual_memory().available,
        }
        return [TelemetryRecord(t_ns, "host", values)]


class ProcessProbe:
    """Memory and CPU time of processes and everything below them.

    Looking for children walks all of /proc, so it is done once a second; memory and CPU time are read each tick.

    Args:
        source: name in the log: ``engine`` or ``client``.
        pids: roots of the trees.
    """

    def __init__(self, source: str, pids: Sequence[int]) -> None:
        self._source = source
        self._pids = pids
        self._tree: list[psutil.Process] = []
        self._refresh_ns = 0

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``rss_bytes``, ``cpu_s`` (user and system, since each process began), ``processes``, ``stopped`` of them."""
        if t_ns >= self._refresh_ns:
            self._tree = self._walk()
            self._refresh_ns = t_ns + _CHILDREN_REFRESH_NS
        rss_bytes, cpu_s, alive, stopped = 0, 0.0, 0, 0
        for process in self._tree:
            try:
                with process.oneshot():
                    rss_bytes += process.memory_info().rss
                    times = process.cpu_times()
                    stopped += process.status() in _STOPPED
                cpu_s += times.user + times.system
                alive += 1
            except psutil.Error:
                self._refresh_ns = 0  # it ended: look again at the next tick
        if not alive:
            reason = f"process {', '.join(map(str, self._pids))} is gone"
            values: dict[str, float | int | str | None] = {"rss_bytes": None, "cpu_s": None, "processes": 0}
            return [TelemetryRecord(t_ns, self._source, values, {"rss_bytes": reason, "cpu_s": reason})]
        values = {"rss_bytes": rss_bytes, "cpu_s": round(cpu_s, 3), "processes": alive, "stopped": stopped}
        return [TelemetryRecord(t_ns, self._source, values)]

    def _walk(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(pid)
                found += [root, *root.children(recursive=True)]
        return found
