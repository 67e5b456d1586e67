"""Measures the CPU time and memory of a client's processes from outside."""

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
    """CPU time and memory of a client's processes, by the host's monotonic clock.

    Attributes:
        t_ns: of each sample; the last is the client's end.
        cpu_s: user and system time so far, of all its processes.
        peak_rss_bytes: largest sum over its processes; pages that they share count more than once.
        processes: largest number at the same time.
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

    It runs on the truth server's core with a higher priority than the server, so that it takes no time from the client.
    A sample can delay the server by up to a millisecond between a timestamp and its write, which counts as the client's
    error: at 50 samples a second, most of the error of clients with 64 streams came from this.
    """

    def __init__(self, pid: int, core: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._processes: dict[int, psutil.Process] = {}
        self._core = core
        self._stopping = threading.Event()
        self._footprint = Footprint([], [], 0, 1)

    def run(self) -> None:
        """Sample until :meth:`finish`."""
        os.sched_setaffinity(0, {self._core})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        while not self._stopping.wait(_PERIOD_S):
            self._sample(time.monotonic_ns())

    def _sample(self, now_ns: int) -> None:
        cpu_s, rss_bytes, alive = 0.0, 0, 0
        for pid in process_tree(self._pid):
            with contextlib.suppress(psutil.Error):
                process = self._processes.get(pid) or self._processes.setdefault(pid, psutil.Process(pid))
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
                cpu_s, rss_bytes, alive = cpu_s + times.user + times.system, rss_bytes + memory.rss, alive + 1
        if alive:
            self._footprint.t_ns.append(now_ns)
            self._footprint.cpu_s.append(cpu_s)
            self._footprint.peak_rss_bytes = max(self._footprint.peak_rss_bytes, rss_bytes)
            self._footprint.processes = max(self._footprint.processes, alive)

    def finish(self, end_ns: int, cpu_s: float) -> Footprint:
        """Stop; the last sample is the larger of the sampled time and ``cpu_s``, the kernel's total."""
        self._stopping.set()
        self.join()
        self._footprint.t_ns.append(end_ns)
        self._footprint.cpu_s.append(max([cpu_s, *self._footprint.cpu_s]))
        return self._footprint


def process_tree(pid: int) -> list[int]:
    """A process and its descendants, as the kernel lists them; psutil would walk all of /proc instead."""
    pids = [pid]
    for parent in pids:  # the list grows during the loop
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids
