"""Telemetry below a timeline: one small line per quantity, its largest value written at its side."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from results.metrics import Unit
from results.metrics.window import NS_PER_S
from results.records import TelemetryRecord
from results.report.charts.paths import joined, stairs
from results.report.charts.scales import Axis
from results.report.charts.svg import label, line, tag
from results.report.format import value_text

HEIGHT = 34.0
_MAX_POINTS = 240


class Track(msgspec.Struct, frozen=True):
    """One quantity over time; ``points`` are (monotonic ns, value)."""

    title: str
    unit: Unit
    points: list[tuple[float, float]]
    steps: bool = False


def tracks_of(telemetry: Sequence[TelemetryRecord], start: int, end: int) -> list[Track]:
    """What the samples hold of memory, processors, power and the engine's own view, within ``start``…``end``."""
    inside = [record for record in telemetry if start <= record.t_ns <= end]
    found = [
        Track("memory", Unit.BYTES, _series(inside, "engine", "rss_bytes")),
        Track("GPU memory", Unit.BYTES, _series(inside, "gpu", "memory_used_bytes")),
        Track("engine, cores", Unit.COUNT, _cores(inside, "engine")),
        Track("client, cores", Unit.COUNT, _cores(inside, "client")),
        Track("host CPU", Unit.SHARE, _series(inside, "host", "cpu_share")),
        Track("GPU power, W", Unit.COUNT, _series(inside, "gpu", "power_w")),
        Track("engine, running", Unit.COUNT, _series(inside, "server", "running")),
        Track("engine, waiting", Unit.COUNT, _series(inside, "server", "waiting")),
        Track("KV cache", Unit.SHARE, _series(inside, "server", "kv_usage_share")),
    ]
    return [track for track in found if len(track.points) > 1]


def draw_track(track: Track, x: Axis, top: float, colour: str) -> Markup:
    """Draw one track, from zero, with its title left and its peak right."""
    highest = max((value for _, value in track.points), default=0.0)
    y = Axis(0.0, highest or 1.0, top + HEIGHT, top)
    places = [(x.at(t), y.at(value)) for t, value in _thinned(track.points)]
    drawn = stairs([*places, (x.end, places[-1][1])]) if track.steps else joined(places)
    return tag(
        "g",
        line(x.start, y.start, x.end, y.start, "base"),
        tag("path", d=drawn, class_="track"),
        label(x.start - 8, top + HEIGHT / 2 + 4, track.title, "tick", "end"),
        label(x.end + 8, top + 9, f"max {_peak(track.unit, highest)}", "tick", "start"),
        class_=colour,
    )


def _peak(unit: Unit, value: float) -> str:
    return f"{value:.0f}" if unit is Unit.COUNT and value == round(value) else value_text(unit, value)


def _cores(records: Sequence[TelemetryRecord], source: str) -> list[tuple[float, float]]:
    """Processors kept busy between two samples, from the processor seconds that a process tree has used."""
    used = _series(records, source, "cpu_s")
    return [
        (t, max(0.0, seconds - before_seconds) / (t - before) * NS_PER_S)
        for (before, before_seconds), (t, seconds) in pairwise(used)
    ]


def _series(records: Sequence[TelemetryRecord], source: str, wanted: str) -> list[tuple[float, float]]:
    """Sum over the sources that begin with ``source``, instant by instant."""
    sums: dict[int, float] = {}
    for record in records:
        value = record.values.get(wanted)
        if record.source.startswith(source) and isinstance(value, int | float):
            sums[record.t_ns] = sums.get(record.t_ns, 0.0) + value
    return sorted((float(t), value) for t, value in sums.items())


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The largest value of each run of neighbours: peaks survive thinning."""
    every = -(-len(points) // _MAX_POINTS)
    return [max(points[i : i + every], key=lambda point: point[1]) for i in range(0, len(points), every)]
