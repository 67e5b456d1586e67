"""Readings of the host and of process trees."""

import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from bakeoff.harness.telemetry.proc import ProcessTree, ProcFile
from bakeoff.results.records import TelemetryRecord

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STOPPED, _ENDED = "Tt", "ZX"
"""Process states; an ended process stays in /proc until its parent reads its status."""
_IDLE, _IOWAIT, _GUEST = 3, 4, 8
_SIZES = {"Pss:": "pss_bytes", "Rss:": "rss_bytes"}


class HostProbe:
    """CPU and memory of the whole machine."""

    def __init__(self) -> None:
        self._stat = ProcFile("/proc/stat")
        self._memory = ProcFile("/proc/meminfo")
        self._before = self._times()

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``cpu_share`` (1 is all cores busy) since the last reading, ``memory_available_bytes``."""
        before, self._before = self._before, self._times()
        total, idle = (new - old for new, old in zip(self._before, before, strict=True))
        values: dict[str, float | int | str | None] = {
            "cpu_share": round(1 - idle / total, 3) if total > 0 else 0.0,
            "memory_available_bytes": self._available_bytes(),
        }
        return [TelemetryRecord(t_ns, "host", values)]

    def _times(self) -> tuple[int, int]:
        """Total and idle ticks of all cores; guest time is excluded, since user time includes it."""
        line = self._stat.read().partition(b"\n")[0]
        ticks = [int(field) for field in line.split()[1:]]
        return sum(ticks[:_GUEST]), ticks[_IDLE] + ticks[_IOWAIT]

    def _available_bytes(self) -> int:
        return int(self._memory.read().partition(b"MemAvailable:")[2].split(maxsplit=1)[0]) * 1024


class ProcessProbe:
    """Memory and CPU time of process trees.

    Args:
        source: name in the log, ``engine`` or ``client``.
        pids: roots of the trees.
    """

    def __init__(self, source: str, pids: Sequence[int]) -> None:
        self._source = source
        self._pids = list(pids)
        self._tree = ProcessTree(pids)

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``rss_bytes``, ``cpu_s`` (user and system, since each process began), ``processes``, and ``stopped`` ones."""
        processes = [process for process in self._tree.read(t_ns).values() if process.state not in _ENDED]
        if not processes:
            reason = f"process {', '.join(map(str, self._pids))} is gone"
            missing: dict[str, float | int | str | None] = {"rss_bytes": None, "cpu_s": None, "processes": 0}
            return [TelemetryRecord(t_ns, self._source, missing, {"rss_bytes": reason, "cpu_s": reason})]
        values: dict[str, float | int | str | None] = {
            "rss_bytes": sum(process.rss_pages for process in processes) * _PAGE_BYTES,
            "cpu_s": sum(process.own for process in processes) / _TICKS_PER_S,
            "processes": len(processes),
            "stopped": sum(process.state in _STOPPED for process in processes),
        }
        return [TelemetryRecord(t_ns, self._source, values)]

    def add(self, pid: int) -> None:
        """Read the tree of another root, too."""
        self._pids.append(pid)
        self._tree.add(pid)

    def close(self) -> None:
        """Close its files."""
        self._tree.close()


def shared_memory(t_ns: int, pids: Sequence[int], proc: Path = Path("/proc")) -> TelemetryRecord:
    """``pss_bytes`` (each page divided by the number of processes that map it) and ``rss_bytes`` of process trees.

    Call it after the load: it walks page tables while the kernel locks each process's memory map.

    Args:
        t_ns: time of the reading.
        pids: roots of the engine's process trees, of which some may have ended.
        proc: path of the proc file system.
    """
    try:
        roots = [psutil.Process(pid) for pid in [*filter(psutil.pid_exists, pids)] or pids]
        trees = [process.pid for root in roots for process in (root, *root.children(recursive=True))]
        readings = [sizes for process in trees if (sizes := _sizes(proc / str(process) / "smaps_rollup"))]
        if not readings:
            raise FileNotFoundError(f"the kernel has no smaps_rollup of process {pids[0]}")
    except (OSError, psutil.Error) as error:
        names = list(_SIZES.values())
        return TelemetryRecord(t_ns, "memory", dict.fromkeys(names), dict.fromkeys(names, str(error)))
    return TelemetryRecord(t_ns, "memory", {name: sum(sizes[name] for sizes in readings) for name in _SIZES.values()})


def _sizes(rollup: Path) -> dict[str, int] | None:
    """Bytes by name of the metric; None for a process that has ended.

    Raises:
        PermissionError: it belongs to another user.
    """
    try:
        lines = [line.split() for line in rollup.read_text(encoding="ascii").splitlines()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return {_SIZES[name]: int(size) * 1024 for name, size, *_ in lines if name in _SIZES} or None
