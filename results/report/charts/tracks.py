"""Telemetry below a timeline: one small line per quantity, from zero, its most telling value written at its side."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean

import msgspec
from markupsafe import Markup

from results.metrics import Unit
from results.records import TelemetryRecord
from results.report.charts.paths import joined, stairs
from results.report.charts.scales import Axis
from results.report.charts.svg import label, line, tag
from results.text.format import value_text
from results.units import NS_PER_S

HEIGHT, STEP = 34.0, 52.0
"""Of a line, and from one to the next."""
MAX_POINTS = 240
Points = list[tuple[float, float]]


class Track(msgspec.Struct, frozen=True):
    """One quantity over time.

    Attributes:
        title: with its unit where ``unit`` has none.
        unit: of the values.
        points: (monotonic ns, value).
        steps: whether a value holds until the next.
        telling: the value that is written: the largest, or the smallest where a fall is what matters.
    """

    title: str
    unit: Unit
    points: Points
    steps: bool = False
    telling: str = "max"

    @property
    def room(self) -> float:
        """Height that it takes."""
        return STEP


def tracks_of(telemetry: Sequence[TelemetryRecord], start: int, end: int) -> list[Track]:
    """What the samples hold of memory, processors, GPUs and the engine's own view, within ``start``…``end``."""
    inside = [record for record in telemetry if start <= record.t_ns <= end]
    found = [
        Track("memory", Unit.BYTES, _series(inside, "engine", "rss_bytes")),
        Track("engine, cores", Unit.COUNT, _cores(inside, "engine")),
        Track("client, cores", Unit.COUNT, _cores(inside, "client")),
        Track("host CPU", Unit.SHARE, _series(inside, "host", "cpu_share")),
        *_gpu_tracks(inside),
        Track("engine, running", Unit.COUNT, _series(inside, "server", "running")),
        Track("engine, waiting", Unit.COUNT, _series(inside, "server", "waiting")),
        Track("KV cache", Unit.SHARE, _series(inside, "server", "kv_usage_share")),
    ]
    return [track for track in found if len(track.points) > 1]


def _gpu_tracks(inside: Sequence[TelemetryRecord]) -> list[Track]:
    """Sums where GPUs add up; else of the one that fares worst: the lowest clock, the highest temperature."""

    def of(name: str, folded: Callable[[Sequence[float]], float]) -> Points:
        return _series(inside, "gpu", name, folded)

    return [
        Track("GPU memory", Unit.BYTES, of("memory_used_bytes", sum)),
        Track("GPU busy", Unit.SHARE, of("utilization_gpu_share", fmean)),
        Track("GPU power, W", Unit.COUNT, of("power_w", sum)),
        Track("GPU clock, MHz", Unit.COUNT, of("clock_sm_mhz", min), telling="min"),
        Track("GPU memory, MHz", Unit.COUNT, of("clock_memory_mhz", min), telling="min"),
        Track("GPU, °C", Unit.COUNT, of("temperature_c", max)),
    ]


def draw_track(track: Track, x: Axis, top: float, colour: str, most: int = MAX_POINTS) -> Markup:
    """Draw one track, from zero, with its title left and its telling value right.

    Args:
        track: with at least one point.
        x: time on pixels.
        top: of its line's room.
        colour: the engine's class.
        most: points; of more the largest (or smallest) of each few neighbours is kept.
    """
    values = [value for _, value in track.points]
    told = min(values) if track.telling == "min" else max(values)
    y = Axis(0.0, max(values) or 1.0, top + HEIGHT, top)
    places = [(x.at(t), y.at(value)) for t, value in _thinned(track.points, most, track.telling)]
    drawn = stairs([*places, (x.end, places[-1][1])]) if track.steps else joined(places)
    return tag(
        "g",
        line(x.start, y.start, x.end, y.start, "base"),
        tag("path", d=drawn, class_="track"),
        label(x.start - 8, top + HEIGHT / 2 + 4, track.title, "tick", "end"),
        label(x.end + 8, top + 9, f"{track.telling} {_told(track.unit, told)}", "tick", "start"),
        class_=colour,
    )


def _told(unit: Unit, value: float) -> str:
    return f"{value:,.0f}" if unit is Unit.COUNT and value == round(value) else value_text(unit, value)


def _cores(records: Sequence[TelemetryRecord], source: str) -> Points:
    """Processors kept busy between two samples, from the processor seconds that a process tree has used."""
    used = _series(records, source, "cpu_s")
    return [
        (t, max(0.0, seconds - before_seconds) / (t - before) * NS_PER_S)
        for (before, before_seconds), (t, seconds) in pairwise(used)
    ]


def _series(
    records: Sequence[TelemetryRecord], source: str, wanted: str, folded: Callable[[Sequence[float]], float] = sum
) -> Points:
    """The sources that begin with ``source``, instant by instant, folded into one value."""
    found: dict[int, list[float]] = {}
    for record in records:
        value = record.values.get(wanted)
        if record.source.startswith(source) and isinstance(value, int | float):
            found.setdefault(record.t_ns, []).append(value)
    return sorted((float(t), float(folded(values))) for t, values in found.items())


def _thinned(points: Points, most: int, telling: str) -> Points:
    """The largest (or smallest) value of each run of neighbours: what matters survives thinning."""
    every = -(-len(points) // most)
    kept = min if telling == "min" else max
    return [kept(points[i : i + every], key=itemgetter(1)) for i in range(0, len(points), every)]
