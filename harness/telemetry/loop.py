"""The sampling loop: ticks at absolute times; missed ticks are counted."""

from collections.abc import Callable, Sequence
from typing import Protocol

from bakeoff.results.records import TelemetryRecord


class Probe(Protocol):
    """Reads one source."""

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """The current records, all stamped ``t_ns``."""
        ...


class Ticker:
    """Fires at start, start + interval, …; ticks that pass while another runs are missed, not late."""

    def __init__(self, interval_ns: int, start_ns: int) -> None:
        self._interval_ns = interval_ns
        self._start_ns = start_ns
        self._next = 0
        self.missed: int = 0

    def wait_ns(self, now_ns: int) -> int:
        """Nanoseconds until the next tick; 0 when it is due."""
        return max(0, self._start_ns + self._next * self._interval_ns - now_ns)

    def fire(self, now_ns: int) -> None:
        """Take the tick that is due, and count missed ones."""
        passed = (now_ns - self._start_ns) // self._interval_ns
        self.missed += max(0, passed - self._next)
        self._next = max(self._next, passed) + 1


def sample(
    probes: Sequence[Probe], ticker: Ticker, now_ns: Callable[[], int], emit: Callable[[TelemetryRecord], None]
) -> None:
    """Read every probe once, with the same time stamp."""
    t_ns = now_ns()
    ticker.fire(t_ns)
    for probe in probes:
        for record in probe.read(t_ns):
            emit(record)
