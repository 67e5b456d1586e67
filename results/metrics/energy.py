"""GPU energy over a window, from NVML's energy counter or an exporter's.

The counter is updated about every 100 ms (observed on an H200), so a window of :data:`MIN_WINDOW_S` bounds the edge
error by 1.3 %. The counter is checked against the integral of the power samples; if they differ by more than
:data:`MAX_DISAGREEMENT`, no number is given. Host power is not measured.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics.declaration import Needs, TrialData, TrialMetric
from bakeoff.results.metrics.series import moved, series, unread_exporter
from bakeoff.results.metrics.throughput import output_rate, request_rate
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import SECOND_SOURCE, TelemetryRecord, Window
from bakeoff.results.units import NS_PER_S

MIN_WINDOW_S = 15.0
MIN_IDLE_S = 4.0
"""Less than the 5 s of ``trial.idle_s``, because the first sample comes a little after the trial's start."""
MAX_DISAGREEMENT = 0.05
MIN_COVERED_SHARE = 0.8
"""Of a window, by the readings of an exporter."""
MAX_STANDSTILL_S = 2.0
"""An idle GPU draws tens of watts, and the counter steps about ten times a second."""


class Energy(msgspec.Struct, frozen=True):
    """Joules over the window: in total, and minus the idle draw."""

    total_j: Value
    above_idle_j: Value


def energy(telemetry: Sequence[TelemetryRecord], window: Window, idle: Window | None = None) -> Energy:
    """Compute the energy of all GPUs over ``window``.

    Args:
        telemetry: samples with ``energy_j`` (counter) and ``power_w`` of sources named ``gpu…``.
        window: the steady window.
        idle: an idle window before the load; without it ``above_idle_j`` is absent.
    """
    total = _total_j(telemetry, window, MIN_WINDOW_S)
    if total.value is None:
        return Energy(total, total)
    if idle is None:
        return Energy(total, absent("no idle baseline was measured"))
    baseline = _total_j(telemetry, idle, MIN_IDLE_S)
    if baseline.value is None:
        return Energy(total, absent(f"no idle baseline: {baseline.reason}"))
    idle_w = baseline.value / idle.length_s
    return Energy(total, Value(total.value - idle_w * window.length_s))


class SecondSource(msgspec.Struct, frozen=True):
    """Energy of one GPU by two sources: NVML here, and an exporter's page."""

    gpu: str
    nvml_j: float
    exporter_j: float


def second_sources(telemetry: Sequence[TelemetryRecord], window: Window) -> list[SecondSource]:
    """The GPUs whose energy over the window two sources know."""
    found: list[SecondSource] = []
    for source in sorted({record.source for record in telemetry if record.source.startswith(SECOND_SOURCE)}):
        gpu = source.removeprefix(SECOND_SOURCE)
        nvml = _device_j([record for record in telemetry if record.source == gpu], window)
        exporter = _exported_j([record for record in telemetry if record.source == source], window)
        if nvml.value is not None and exporter.value is not None:
            found.append(SecondSource(gpu, nvml.value, exporter.value))
    return found


def per_unit(joules: Value, count: float, unit: str) -> Value:
    """Joules per token or per request."""
    if joules.value is None:
        return joules
    return Value(joules.value / count) if count > 0 else absent(f"no {unit} in the window")


def _total_j(telemetry: Sequence[TelemetryRecord], window: Window, min_length_s: float) -> Value:
    sources = sorted({record.source for record in telemetry if record.source.startswith("gpu")})
    if (reason := unread_exporter(telemetry)) is not None:
        return absent(reason)
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
    """Energy of one GPU: counter difference between the window's edges, checked against the power samples."""
    if records and "@" in records[0].source:
        return _exported_j(records, window)
    counter = series(records, "energy_j")
    used = moved(records, "energy_j", window)
    if counter is None or used.value is None:
        return used
    stuck_s = _longest_standstill_s(*counter, window)
    if stuck_s > MAX_STANDSTILL_S or used.value <= 0:
        return absent(f"the energy counter did not change for {stuck_s:.1f} s or was reset")
    power = series(records, "power_w")
    if power is not None:
        integral = _integral(*power, window)
        if abs(integral - used.value) > MAX_DISAGREEMENT * used.value:
            return absent(f"unreliable: the counter shows {used.value:.0f} J, integrated power {integral:.0f} J")
    return used


def _exported_j(records: Sequence[TelemetryRecord], window: Window) -> Value:
    """Energy of one GPU by an exporter, which shows each reading until its next one, seconds later.

    Its readings are taken to be from the time when they were first seen. The energy between the first and the last one
    inside the window, or right outside where they are known, is extrapolated to the window.
    """
    counter = series(records, "energy_j")
    if counter is None:
        reasons = (record.reasons["energy_j"] for record in records if "energy_j" in record.reasons)
        return absent(next(reasons, "its exporter shows no energy counter"))
    times, joules = counter
    if (np.diff(joules) < 0).any():
        return absent("the energy counter was reset")
    fresh = np.concatenate([[False], np.diff(joules) > 0])  # the first reading may be of long before
    times, joules = times[fresh], joules[fresh]
    first = max(0, int(np.searchsorted(times, window.start_ns, "right")) - 1)
    last = min(len(times) - 1, int(np.searchsorted(times, window.end_ns, "left")))
    if last <= first:
        return absent(
            "its exporter read the GPU less than twice in the window; set a shorter interval (dcgm-exporter -c)"
        )
    ends = np.clip(times[[first, last]], window.start_ns, window.end_ns)
    covered = (ends[1] - ends[0]) / (window.end_ns - window.start_ns)
    if covered < MIN_COVERED_SHARE:
        return absent(
            f"its exporter's readings cover {covered:.0%} of the window; set a shorter interval (dcgm-exporter -c)"
        )
    inside = np.interp(ends, times, joules)
    return Value(float(inside[1] - inside[0]) / covered)


def _longest_standstill_s(times: np.ndarray, joules: np.ndarray, window: Window) -> float:
    """The longest time within the window without a change of the counter."""
    inside = (times >= window.start_ns) & (times <= window.end_ns)
    t, values = times[inside], joules[inside]
    changes = np.flatnonzero(np.diff(values)) + 1
    runs = np.split(t, changes)
    return max((float(run[-1] - run[0]) / NS_PER_S for run in runs if run.size), default=0.0)


def _integral(times: np.ndarray, watts: np.ndarray, window: Window) -> float:
    """Trapezoidal integral of power over the window, with interpolated edges."""
    inside = (times > window.start_ns) & (times < window.end_ns)
    edges = np.array([window.start_ns, window.end_ns])
    at_edges = np.interp(edges, times, watts)
    t = np.concatenate([edges[:1], times[inside], edges[1:]]) / NS_PER_S
    return float(np.trapezoid(np.concatenate([at_edges[:1], watts[inside], at_edges[1:]]), t))


def _tokens(data: TrialData) -> float:
    return (data.once(output_rate).value or 0.0) * data.window.length_s


def _requests(data: TrialData) -> float:
    return (data.once(request_rate).value or 0.0) * data.window.length_s


def _num_readings(data: TrialData) -> int:
    readings = (record for record in data.gpu_telemetry if record.values.get("energy_j") is not None)
    return sum(data.window.holds(record.t_ns) for record in readings)


def _energy(data: TrialData) -> Energy:
    return energy(data.telemetry, data.window, data.idle)


_READING = "a reading of a GPU's energy counter"
METRICS = (
    TrialMetric(
        name="energy_per_output_token_j",
        title="energy/token",
        unit=Unit.JOULES,
        better=Better.LOWER,
        definition="GPU energy-counter difference over the window per output token, idle draw included",
        observation=_READING,
        roles=frozenset({Role.PER_TOKEN}),
        needs=Needs.TELEMETRY,
        of=lambda data: per_unit(data.once(_energy).total_j, _tokens(data), "output token"),
        count=_num_readings,
    ),
    TrialMetric(
        name="energy_above_idle_per_output_token_j",
        title="energy above idle/token",
        unit=Unit.JOULES,
        better=Better.LOWER,
        definition="the same with the idle draw taken away",
        observation=_READING,
        roles=frozenset({Role.PER_TOKEN}),
        needs=Needs.TELEMETRY,
        of=lambda data: per_unit(data.once(_energy).above_idle_j, _tokens(data), "output token"),
        count=_num_readings,
    ),
    TrialMetric(
        name="energy_per_request_j",
        title="energy/request",
        unit=Unit.JOULES,
        better=Better.LOWER,
        definition="GPU energy-counter difference over the window per successful request, idle draw included",
        observation=_READING,
        needs=Needs.TELEMETRY,
        of=lambda data: per_unit(data.once(_energy).total_j, _requests(data), "successful request"),
        count=_num_readings,
    ),
)
