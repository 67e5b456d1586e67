"""Telemetry tracks below a timeline: one small line per quantity, from zero, with its extreme value beside it."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from statistics import fmean

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.metrics.series import rates
from bakeoff.results.records import TelemetryRecord
from bakeoff.results.report.charts.paths import joined, stairs
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import label, line, tag
from bakeoff.results.server_view import SOURCE, engine_page
from bakeoff.results.text.format import value_text

HEIGHT, STEP = 34.0, 52.0
"""Height of a track, and distance between tracks, in pixels."""
MAX_POINTS = 240
Points = list[tuple[float, float]]


class Track(msgspec.Struct, frozen=True):
    """One quantity over time.

    Attributes:
        title: includes the unit if ``unit`` has none.
        unit: of the values.
        points: (monotonic ns, value).
        steps: whether a value holds until the next point.
        extreme: the value to label: ``max``, or ``min`` where low values matter.
    """

    title: str
    unit: Unit
    points: Points
    steps: bool = False
    extreme: str = "max"

    @property
    def height(self) -> float:
        """Height in pixels, margin included."""
        return STEP


def tracks_of(telemetry: Sequence[TelemetryRecord], start: int, end: int) -> list[Track]:
    """Tracks of memory, CPUs, GPUs and server metrics within ``start``…``end`` that have 2 points or more."""
    inside = [record for record in telemetry if start <= record.t_ns <= end]
    page = engine_page(inside)
    tracks = [
        Track("memory", Unit.BYTES, _series(inside, "engine", "rss_bytes")),
        Track("engine, cores", Unit.COUNT, _rates(inside, "engine", "cpu_s")),
        Track("client, cores", Unit.COUNT, _rates(inside, "client", "cpu_s")),
        Track("host CPU", Unit.SHARE, _series(inside, "host", "cpu_share")),
        *_gpu_tracks(inside),
        Track("engine, running", Unit.COUNT, _series(page, SOURCE, "running")),
        Track("engine, waiting", Unit.COUNT, _series(page, SOURCE, "waiting")),
        Track("KV cache", Unit.SHARE, _series(page, SOURCE, "kv_usage_share")),
    ]
    return [track for track in tracks if len(track.points) > 1]


def _gpu_tracks(inside: Sequence[TelemetryRecord]) -> list[Track]:
    """Sums over GPUs for additive quantities; otherwise the worst GPU: lowest clock, highest temperature."""

    def of(name: str, fold: Callable[[Sequence[float]], float]) -> Points:
        return _series(inside, "gpu", name, fold)

    return [
        Track("GPU memory", Unit.BYTES, of("memory_used_bytes", sum)),
        Track("GPU busy", Unit.SHARE, of("utilization_gpu_share", fmean)),
        Track("GPU power, W", Unit.COUNT, of("power_w", sum)),
        Track("GPU clock, MHz", Unit.COUNT, of("clock_sm_mhz", min), extreme="min"),
        Track("GPU memory, MHz", Unit.COUNT, of("clock_memory_mhz", min), extreme="min"),
        Track("GPU, °C", Unit.COUNT, of("temperature_c", max)),
        Track("GPU SMs busy", Unit.SHARE, of("gpm_sm_share", fmean)),
        Track("GPU tensor cores", Unit.SHARE, of("gpm_tensor_share", fmean)),
        Track("GPU DRAM", Unit.SHARE, of("gpm_dram_share", fmean)),
        Track("PCIe, per s", Unit.BYTES, _rates(inside, "gpu", "pcie_tx_bytes", "pcie_rx_bytes")),
        Track("NVLink, per s", Unit.BYTES, _rates(inside, "gpu", "nvlink_tx_bytes", "nvlink_rx_bytes")),
    ]


def draw_track(track: Track, x: Axis, top: float, colour: str, most: int = MAX_POINTS) -> Markup:
    """Draw one track from zero, with its title on the left and its extreme value on the right.

    Args:
        track: with at least one point.
        x: time axis.
        top: upper edge in pixels.
        colour: CSS class of the engine.
        most: maximum number of points; more are thinned to the extreme of each group of neighbours.
    """
    values = [value for _, value in track.points]
    value = min(values) if track.extreme == "min" else max(values)
    y = Axis(0.0, max(values) or 1.0, top + HEIGHT, top)
    places = [(x.at(t), y.at(level)) for t, level in _thinned(track.points, most, track.extreme)]
    drawn = stairs([*places, (x.end, places[-1][1])]) if track.steps else joined(places)
    return tag(
        "g",
        line(x.start, y.start, x.end, y.start, "base"),
        tag("path", d=drawn, class_="track"),
        label(x.start - 8, top + HEIGHT / 2 + 4, track.title, "tick", "end"),
        label(x.end + 8, top + 9, f"{track.extreme} {_text(track.unit, value)}", "tick", "start"),
        class_=colour,
    )


def _text(unit: Unit, value: float) -> str:
    return f"{value:,.0f}" if unit is Unit.COUNT and value == round(value) else value_text(unit, value)


def _rates(records: Sequence[TelemetryRecord], source: str, *counters: str) -> Points:
    """Increase of counters per second, summed over sources and counters; CPU seconds give the number of busy cores.

    A counter without a reading between two others keeps its rate.
    """
    readings: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for record in records:
        for name in counters:
            value = record.values.get(name)
            if record.source.startswith(source) and isinstance(value, int | float):
                readings.setdefault((record.source, name), []).append((record.t_ns, value))
    moving = [per_second for counter in readings.values() if (per_second := rates(counter))]
    times_ns = np.array(sorted({rate.end_ns for per_second in moving for rate in per_second}), dtype=np.int64)
    sums = np.zeros(len(times_ns))
    for per_second in moving:
        ends_ns, values = np.array([rate.end_ns for rate in per_second]), np.array([rate.per_s for rate in per_second])
        inside = (times_ns > per_second[0].start_ns) & (times_ns <= ends_ns[-1])
        sums[inside] += values[np.searchsorted(ends_ns, times_ns[inside])]
    return list(zip(times_ns.astype(float).tolist(), sums.tolist(), strict=True))


def _series(
    records: Sequence[TelemetryRecord], source: str, name: str, fold: Callable[[Sequence[float]], float] = sum
) -> Points:
    """Values of all sources whose name starts with ``source``, folded into one per sample time."""
    by_time: dict[int, list[float]] = {}
    for record in records:
        value = record.values.get(name)
        if record.source.startswith(source) and isinstance(value, int | float):
            by_time.setdefault(record.t_ns, []).append(value)
    return sorted((float(t), float(fold(values))) for t, values in by_time.items())


def _thinned(points: Points, most: int, extreme: str) -> Points:
    """Extreme value of each group of neighbours."""
    every = -(-len(points) // most)
    choose = min if extreme == "min" else max
    return [choose(points[i : i + every], key=itemgetter(1)) for i in range(0, len(points), every)]
