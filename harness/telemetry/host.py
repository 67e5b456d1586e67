"""Readings of the host and of process trees."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from bakeoff import system
from bakeoff.harness.host.cpu import UNREADABLE
from bakeoff.harness.host.processes import ProcessTree
from bakeoff.results.records import TelemetryRecord

_SIZES = {"Pss:": "pss_bytes", "Rss:": "rss_bytes"}


class HostProbe:
    """CPU and memory of the whole machine."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        with contextlib.suppress(*UNREADABLE):
            self._before = _busy_and_total_s()

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """``cpu_share`` (1 is all cores busy) since the last reading, ``memory_available_bytes``."""
        values: dict[str, float | int | str | None] = {"cpu_share": None, "memory_available_bytes": None}
        reason = "there was no earlier reading"
        try:
            before, self._before = self._before, _busy_and_total_s()
            if before is not None:
                busy_s, total_s = (new - old for new, old in zip(self._before, before, strict=True))
                values["cpu_share"] = round(busy_s / total_s, 3) if total_s > 0 else 0.0
            values["memory_available_bytes"] = psutil.virtual_memory().available
        except UNREADABLE as error:
            reason = f"{type(error).__name__}: {error}"
        return [TelemetryRecord(t_ns, "host", values, {name: reason for name in values if values[name] is None})]


def _busy_and_total_s() -> tuple[float, float]:
    """Time of all cores since the machine started; without guest time, since user time includes it."""
    times = psutil.cpu_times()._asdict()
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total_s - times["idle"] - times.get("iowait", 0.0), total_s


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
        processes = [process for process in self._tree.read(t_ns).values() if not process.has_ended]
        if not processes:
            reason = f"process {', '.join(map(str, self._pids))} is gone"
            missing: dict[str, float | int | str | None] = {"rss_bytes": None, "cpu_s": None, "processes": 0}
            return [TelemetryRecord(t_ns, self._source, missing, {"rss_bytes": reason, "cpu_s": reason})]
        values: dict[str, float | int | str | None] = {
            "rss_bytes": sum(process.rss_bytes for process in processes),
            "cpu_s": sum(process.own_s for process in processes),
            "processes": len(processes),
            "stopped": sum(process.is_stopped for process in processes),
        }
        return [TelemetryRecord(t_ns, self._source, values)]

    def add(self, pid: int) -> None:
        """Read the tree of another root, too."""
        self._pids.append(pid)
        self._tree.add(pid)

    def close(self) -> None:
        """Close its files."""
        self._tree.close()


def shared_memory(t_ns: int, pids: Sequence[int]) -> TelemetryRecord:
    """``pss_bytes`` (each page divided by the number of processes that map it) and ``rss_bytes`` of process trees.

    Call it after the load: it walks page tables while the kernel locks each process's memory map.

    Args:
        t_ns: time of the reading.
        pids: roots of the engine's process trees, of which some may have ended.
    """
    try:
        if (files := system.proc()) is None:
            raise FileNotFoundError("this system does not say which pages processes share")
        roots = [psutil.Process(pid) for pid in [*filter(psutil.pid_exists, pids)] or pids]
        trees = [process.pid for root in roots for process in (root, *root.children(recursive=True))]
        readings = [sizes for process in trees if (sizes := _sizes(files / str(process) / "smaps_rollup"))]
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
