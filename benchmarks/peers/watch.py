"""See from outside what a client's processes cost."""

import contextlib
import os
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil

_PERIOD_S = 0.25
_PRIORITY = 20


class Footprint(msgspec.Struct):
    """What a client's processes used, by the host's monotonic clock.

    Attributes:
        t_ns: of each sample; the last is the client's end.
        cpu_s: user and system time so far, of all its processes.
        peak_rss_bytes: largest sum over its processes; pages that they share count more than once.
        processes: the most that were seen at once.
    """

    t_ns: list[int]
    cpu_s: list[float]
    peak_rss_bytes: int
    processes: int

    def cpu_between_s(self, start_ns: int, end_ns: int) -> float:
        """CPU time between two instants, linear between samples."""
        first, last = np.interp([start_ns, end_ns], self.t_ns, self.cpu_s)
        return float(last - first)


class Watch(threading.Thread):
    """Samples a process tree four times a second.

    It runs on the truth server's core, above its priority, so that it takes nothing from the client. A sample delays
    the server by up to a millisecond between a stamp and its write, which counts as the client's error: at 50 samples
    a second it was most of what clients of 64 streams seemed to be late.
    """

    def __init__(self, pid: int, core: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._known: dict[int, psutil.Process] = {}
        self._core = core
        self._over = threading.Event()
        self._seen = Footprint([], [], 0, 1)

    def run(self) -> None:
        """Sample until :meth:`finish`."""
        os.sched_setaffinity(0, {self._core})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        while not self._over.wait(_PERIOD_S):
            self._sample(time.monotonic_ns())

    def _sample(self, now_ns: int) -> None:
        cpu_s, rss_bytes, alive = 0.0, 0, 0
        for pid in family(self._pid):
            with contextlib.suppress(psutil.Error):
                process = self._known.get(pid) or self._known.setdefault(pid, psutil.Process(pid))
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
                cpu_s, rss_bytes, alive = cpu_s + times.user + times.system, rss_bytes + memory.rss, alive + 1
        if alive:
            self._seen.t_ns.append(now_ns)
            self._seen.cpu_s.append(cpu_s)
            self._seen.peak_rss_bytes = max(self._seen.peak_rss_bytes, rss_bytes)
            self._seen.processes = max(self._seen.processes, alive)

    def finish(self, end_ns: int, cpu_s: float) -> Footprint:
        """Stop; where the kernel's own account at the end knows of more CPU time, it is the last sample."""
        self._over.set()
        self.join()
        self._seen.t_ns.append(end_ns)
        self._seen.cpu_s.append(max([cpu_s, *self._seen.cpu_s]))
        return self._seen


def family(pid: int) -> list[int]:
    """A process and all that descend from it, as the kernel lists them; psutil would walk all of /proc instead."""
    found = [pid]
    for member in found:  # grows on the way
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found
