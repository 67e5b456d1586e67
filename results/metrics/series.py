"""One value of one source of telemetry over time, and how far a cumulative counter moved over a window."""

from collections.abc import Sequence

import numpy as np

from results.metrics.values import Value, absent
from results.records import TelemetryRecord, Window

Series = tuple[np.ndarray, np.ndarray]
"""Monotonic nanoseconds, and the values read then."""


def series(records: Sequence[TelemetryRecord], name: str) -> Series | None:
    """The readings that have this value; None where fewer than two do.

    Args:
        records: of one source.
        name: of the value.
    """
    pairs = [(record.t_ns, value) for record in records if isinstance(value := record.values.get(name), int | float)]
    if len(pairs) < 2:
        return None
    return np.array([t for t, _ in pairs], dtype=np.int64), np.array([v for _, v in pairs], dtype=np.float64)


def moved(records: Sequence[TelemetryRecord], name: str, window: Window) -> Value:
    """Difference of a counter between the window's edges, each interpolated between the readings around it.

    Args:
        records: of one source.
        name: of the counter.
        window: absent where the readings do not reach over both of its edges.
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
