"""Lateness of this process's event loop: the error that a busy or interrupted client adds to every stamp."""

import numpy as np

from bakeoff.harness.host.clock import Clock
from bakeoff.results.records import TelemetryRecord

TICK_NS = 20_000_000
SOURCE = "client_loop"
NAMES = ("loop_lag_p50_s", "loop_lag_p99_s", "loop_lag_max_s")


class LoopLag:
    """Measures the lateness of a 20 ms heartbeat on the running loop.

    Beats are due at absolute times, so a stall of a second counts as fifty late beats, not one.

    Args:
        clock: schedules the beats and measures their lateness.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_ns: int | None = None
        self.late_ns: list[int] = []

    def start(self) -> None:
        """Start the heartbeat."""
        self._due_ns = self._clock.now_ns() + TICK_NS
        self._clock.call_at_ns(self._due_ns, self._beat)

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._due_ns = None

    def summary(self, t_ns: int) -> TelemetryRecord:
        """Percentiles as one ``client_loop`` record; null with a reason if there was no beat."""
        if not self.late_ns:
            reason = "the load was shorter than one heartbeat"
            return TelemetryRecord(t_ns, SOURCE, dict.fromkeys(NAMES), dict.fromkeys(NAMES, reason))
        values = np.quantile(np.asarray(self.late_ns) / 1e9, [0.5, 0.99, 1.0])
        return TelemetryRecord(t_ns, SOURCE, {n: float(v) for n, v in zip(NAMES, values, strict=True)})

    def _beat(self) -> None:
        if self._due_ns is None:
            return
        now_ns = self._clock.now_ns()
        while self._due_ns <= now_ns:
            self.late_ns.append(now_ns - self._due_ns)
            self._due_ns += TICK_NS
        self._clock.call_at_ns(self._due_ns, self._beat)
