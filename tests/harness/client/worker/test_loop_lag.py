"""The heartbeat that measures how late a worker's loop is, on a clock that the test moves."""

from collections.abc import Callable

import pytest

from bakeoff.harness.client.worker.loop_lag import BUSY_SHARE, TICK_NS, LoopLag

MS = 1_000_000


class HandClock:
    """Rings at most one alarm, when :meth:`pass_ns` lets the loop run again."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._alarm: tuple[int, Callable[[], None]] | None = None

    def now_ns(self) -> int:
        return self._now_ns

    def call_at_ns(self, deadline_ns: int, callback: Callable[[], None]) -> None:
        self._alarm = (deadline_ns, callback)

    def pass_ns(self, length_ns: int) -> None:
        """Block the loop for this long, then ring what is due."""
        self._now_ns += length_ns
        if self._alarm is not None and self._alarm[0] <= self._now_ns:
            callback, self._alarm = self._alarm[1], None
            callback()


def measured(*pauses_ms: float, cpu_share: float = 0.0) -> LoopLag:
    clock = HandClock()
    lag = LoopLag(clock, lambda: round(clock.now_ns() * cpu_share))
    lag.start()
    for pause_ms in pauses_ms:
        clock.pass_ns(round(pause_ms * MS))
    return lag


def test_lateness_is_known_below_a_millisecond():
    lag = measured(20.05, 19.95 + 0.3)
    assert lag.late_ns == [50_000, 300_000]
    assert lag.summary(7).values["loop_lag_max_s"] == pytest.approx(0.0003)


def test_a_stall_counts_once_for_each_beat_that_fell_into_it():
    """1 s of 30 s: a heartbeat that only counted the beat it woke up with would show a single late one of 1,450."""
    lag = measured(*[20] * 1450, 1000)
    assert len(lag.late_ns) == 1500
    assert sum(late_ns > 0 for late_ns in lag.late_ns) == 49
    p99_s = lag.summary(0).values["loop_lag_p99_s"]
    assert isinstance(p99_s, float)
    assert p99_s == pytest.approx(0.68, abs=0.01)


def test_cpu_time_tells_own_work_from_pauses_of_the_machine():
    assert measured(20, 20.9).summary(0).values[BUSY_SHARE] == 0  # 0.9 ms late is no stall
    assert measured(20, 45).summary(0).values[BUSY_SHARE] == 0
    assert measured(20, 45, cpu_share=1.0).summary(0).values[BUSY_SHARE] == 1
    # 45 ms with 9 ms of work: at most 9 of the 25 ms late.
    assert measured(20, 45, cpu_share=0.2).summary(0).values[BUSY_SHARE] == pytest.approx(9 / 25)


def test_nothing_is_counted_before_the_start_or_after_the_stop():
    clock = HandClock()
    lag = LoopLag(clock)
    clock.pass_ns(100 * TICK_NS)
    lag.start()
    clock.pass_ns(TICK_NS)
    lag.stop()
    clock.pass_ns(100 * TICK_NS)
    assert lag.late_ns == [0]


def test_a_load_shorter_than_a_beat_has_a_reason_instead_of_a_number():
    summary = measured(10).summary(0)
    assert set(summary.values.values()) == {None}
    assert summary.reasons["loop_lag_p99_s"] == "the load was shorter than one heartbeat"
