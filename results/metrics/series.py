"""Time series of one telemetry value; the increase of a counter over a window, and its rate."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import FAILED_EXPORTER, SECOND_SOURCE, TelemetryRecord, Window
from bakeoff.results.units import NS_PER_S

Series = tuple[np.ndarray, np.ndarray]
"""Timestamps in monotonic nanoseconds, and values."""


def series(records: Sequence[TelemetryRecord], name: str) -> Series | None:
    """Extract the samples that have a value; None if fewer than two do.

    Args:
        records: of one source.
        name: name of the value.
    """
    pairs = [(record.t_ns, value) for record in records if isinstance(value := record.values.get(name), int | float)]
    if len(pairs) < 2:
        return None
    return np.array([t for t, _ in pairs], dtype=np.int64), np.array([v for _, v in pairs], dtype=np.float64)


def unread_exporter(telemetry: Sequence[TelemetryRecord]) -> str | None:
    """Why figures of an exporter's GPUs are missing; None if every page was read at least once."""
    if any(record.source.startswith(SECOND_SOURCE) for record in telemetry):
        return None  # of GPUs that NVML samples, too
    read = {record.source.partition("@")[2] for record in telemetry}
    failed = (record for record in telemetry if record.source.startswith(FAILED_EXPORTER))
    reasons = (
        f"{record.source}: {record.reasons['scrape_s']}"
        for record in failed
        if record.source.removeprefix(FAILED_EXPORTER) not in read
    )
    return next(reasons, None)


class Rate(NamedTuple):
    """Increase of a counter per second between two readings."""

    start_ns: int
    end_ns: int
    per_s: float


def rates(counter: Iterable[tuple[int, float]], shortest_ns: int = 1) -> list[Rate]:
    """Increase of a counter per second, between each reading and the one before; 0 where it was reset.

    Args:
        counter: times in monotonic nanoseconds, in order, and values.
        shortest_ns: readings that follow the one before sooner are left out: many counters move in steps, so their rate
            over less time than a step is either 0 or far too high.
    """
    readings: list[tuple[int, float]] = []
    for t_ns, value in counter:
        if not readings or t_ns - readings[-1][0] >= shortest_ns:
            readings.append((t_ns, value))
    return [
        Rate(earlier, now, max(0.0, after - before) * NS_PER_S / (now - earlier))
        for (earlier, before), (now, after) in pairwise(readings)
    ]  # fmt: skip


def moved(records: Sequence[TelemetryRecord], name: str, window: Window) -> Value:
    """Increase of a counter over a window, interpolated at both edges.

    Args:
        records: of one source.
        name: name of the counter.
        window: the window; the result is absent unless the samples cover both edges.
    """
    readings = series(records, name)
    if readings is None:
        return absent(
            next((record.reasons[name] for record in records if name in record.reasons), f"{name} was not sampled")
        )
    times, values = readings
    if times[0] > window.start_ns or times[-1] < window.end_ns:
        return absent("the samples do not cover the window")
    start, end = np.interp([window.start_ns, window.end_ns], times, values)
    return Value(float(end - start))
