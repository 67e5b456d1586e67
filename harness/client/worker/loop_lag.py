"""Lateness of this process's event loop: the error that a busy or interrupted client adds to every stamp."""

import time
from collections.abc import Callable

import numpy as np

from bakeoff.harness.host.clock import Clock
from bakeoff.results.records import TelemetryRecord

TICK_NS = 20_000_000
SOURCE = "client_loop"
STALL_NS = 1_000_000
"""Lateness below this is not a stall: the client's calibrated error includes it."""
NAMES = ("loop_lag_p50_s", "loop_lag_p99_s", "loop_lag_max_s")
BUSY_SHARE = "loop_lag_busy_share"
"""At most this share of the time lost in stalls went into this process's own work; in the rest, it did not run."""


class LoopLag:
    """Measures the lateness of a 20 ms heartbeat on the running loop.

    Beats are due at absolute times, so a stall of a second counts as fifty late beats, not one.

    Args:
        clock: schedules the beats and measures their lateness.
        cpu_ns: CPU time of this process in nanoseconds.
    """

    def __init__(self, clock: Clock, cpu_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._clock = clock
        self._cpu_ns = cpu_ns
        self._due_ns: int | None = None
        self._cpu_before_ns = 0
        self._stalled_ns = 0
        self._busy_ns = 0
        self.late_ns: list[int] = []

    def start(self) -> None:
        """Start the heartbeat."""
        self._due_ns = self._clock.now_ns() + TICK_NS
        self._cpu_before_ns = self._cpu_ns()
        self._clock.call_at_ns(self._due_ns, self._beat)

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._due_ns = None

    def summary(self, t_ns: int) -> TelemetryRecord:
        """Percentiles and the busy share as one ``client_loop`` record; null with a reason if there was no beat."""
        if not self.late_ns:
            reason = "the load was shorter than one heartbeat"
            return TelemetryRecord(t_ns, SOURCE, dict.fromkeys(NAMES), dict.fromkeys(NAMES, reason))
        values = np.quantile(np.asarray(self.late_ns) / 1e9, [0.5, 0.99, 1.0])
        busy_share = self._busy_ns / self._stalled_ns if self._stalled_ns else 0.0
        measured = {name: float(value) for name, value in zip(NAMES, values, strict=True)}
        return TelemetryRecord(t_ns, SOURCE, {**measured, BUSY_SHARE: busy_share})

    def _beat(self) -> None:
        if self._due_ns is None:
            return
        now_ns = self._clock.now_ns()
        cpu_ns = self._cpu_ns()
        if (late_ns := now_ns - self._due_ns) > STALL_NS:
            self._stalled_ns += late_ns
            self._busy_ns += min(late_ns, cpu_ns - self._cpu_before_ns)
        self._cpu_before_ns = cpu_ns
        while self._due_ns <= now_ns:
            self.late_ns.append(now_ns - self._due_ns)
            self._due_ns += TICK_NS
        self._clock.call_at_ns(self._due_ns, self._beat)
