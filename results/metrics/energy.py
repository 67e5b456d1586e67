"""Energy of the GPUs over a window, from NVML's energy counter.

The counter steps about every 100 ms (seen on an H200), so a window of :data:`MIN_WINDOW_S` bounds the edge error by
0.7 %. The counter is cross-checked against the integral of the power readings; further apart than
:data:`MAX_DISAGREEMENT` both are doubted and no number is given. Host power is not measured.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from results.metrics.values import Value, absent
from results.metrics.window import NS_PER_S, Window
from results.records import TelemetryRecord

MIN_WINDOW_S = 30.0
MIN_IDLE_S = 5.0
MAX_DISAGREEMENT = 0.05


class Energy(msgspec.Struct, frozen=True):
    """Joules over the window: all of it, and what is left after the idle draw is taken away."""

    total_j: Value
    above_idle_j: Value


def energy(telemetry: Sequence[TelemetryRecord], window: Window, idle: Window | None = None) -> Energy:
    """Energy of all GPUs over ``window``.

    Args:
        telemetry: samples with ``energy_j`` (counter) and ``power_w`` of sources named ``gpu…``.
        window: the steady window.
        idle: a window before the load in which nothing ran; without it ``above_idle_j`` is absent.
    """
    total = _total_j(telemetry, window, MIN_WINDOW_S)
    if total.value is None:
        return Energy(total, total)
    if idle is None:
        return Energy(total, absent("no idle baseline was taken"))
    baseline = _total_j(telemetry, idle, MIN_IDLE_S)
    if baseline.value is None:
        return Energy(total, absent(f"no idle baseline: {baseline.reason}"))
    idle_w = baseline.value / idle.length_s
    return Energy(total, Value(total.value - idle_w * window.length_s))


def per_unit(joules: Value, count: float, unit: str) -> Value:
    """Joules per token or per request."""
    if joules.value is None:
        return joules
    return Value(joules.value / count) if count > 0 else absent(f"no {unit} in the window")


def _total_j(telemetry: Sequence[TelemetryRecord], window: Window, min_length_s: float) -> Value:
    sources = sorted({record.source for record in telemetry if record.source.startswith("gpu")})
    if not sources:
        return absent("no GPU was sampled")
    if window.length_s < min_length_s:
        return absent(f"energy needs a window of {min_length_s:g} s, this one has {window.length_s:.1f} s")
    total = 0.0
    for source in sources:
        value = _device_j([record for record in telemetry if record.source == source], window)
        if value.value is None:
            return absent(f"{source}: {value.reason}")
        total += value.value
    return Value(total)


def _device_j(records: Sequence[TelemetryRecord], window: Window) -> Value:
    """One device: the counter's difference between the edges of the window, checked against the power readings."""
    counter = _series(records, "energy_j")
    if counter is None:
        return absent(next((r.reasons["energy_j"] for r in records if "energy_j" in r.reasons), "no energy counter"))
    times, joules = counter
    if times[0] > window.start_ns or times[-1] < window.end_ns:
        return absent("the samples do not cover the window")
    used = float(np.interp(window.end_ns, times, joules) - np.interp(window.start_ns, times, joules))
    if used <= 0:
        return absent(f"the energy counter moved by {used:.0f} J over the window: it stands still or was reset")
    power = _series(records, "power_w")
    if power is not None:
        integral = _integral(*power, window)
        if abs(integral - used) > MAX_DISAGREEMENT * used:
            return absent(f"the counter says {used:.0f} J, integrated power {integral:.0f} J: unreliable")
    return Value(used)


def _series(records: Sequence[TelemetryRecord], name: str) -> tuple[np.ndarray, np.ndarray] | None:
    pairs = [(record.t_ns, value) for record in records if isinstance(value := record.values.get(name), int | float)]
    if len(pairs) < 2:
        return None
    return np.array([t for t, _ in pairs], dtype=np.int64), np.array([v for _, v in pairs], dtype=np.float64)


def _integral(times: np.ndarray, watts: np.ndarray, window: Window) -> float:
    """Trapezoid of power over the window, with the edges interpolated."""
    inside = (times > window.start_ns) & (times < window.end_ns)
    edges = np.array([window.start_ns, window.end_ns])
    at_edges = np.interp(edges, times, watts)
    t = np.concatenate([edges[:1], times[inside], edges[1:]]) / NS_PER_S
    return float(np.trapezoid(np.concatenate([at_edges[:1], watts[inside], at_edges[1:]]), t))
