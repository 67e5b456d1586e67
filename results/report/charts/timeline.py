"""Timeline of a trial: each request as a bar, with telemetry below.

Requests share lanes: there are as many as the maximum number of requests in flight. A bar is pale while the request
waits (planned to first token) and solid while it decodes (first to last token); a tick marks the first token. A failed
request is a crossed pale bar. The shaded background is the steady window, the only part that metrics count.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.columns import Ints
from bakeoff.results.metrics import Unit
from bakeoff.results.records import Outcome, Phase, RequestRecord
from bakeoff.results.report.charts.axes import tick_text
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import chart, label, line, num, tag
from bakeoff.results.report.charts.throttling import draw_throttling, throttling_of
from bakeoff.results.report.charts.tracks import MAX_POINTS, Track, draw_track, tracks_of
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from bakeoff.results.text.format import duration_text, value_text
from bakeoff.results.units import NS_PER_S

WIDTH = 1100
_LEFT, _RIGHT, _TOP, _MARGIN = 118, 990, 30, 14
_BINS = 300


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """Position and hover text of a bar; sent to the script as an array."""

    lane: int
    left: float
    right: float
    index: int
    text: str


class Drawn(msgspec.Struct, frozen=True):
    """The chart and the data of its hover text.

    Attributes:
        svg: the chart.
        bars: one per bar drawn.
        every: n if every n-th request is drawn.
    """

    svg: Markup
    bars: list[Bar]
    every: int


class Limits(msgspec.Struct, frozen=True):
    """Maximum number of bars, and of points per telemetry track."""

    bars: int
    points: int = MAX_POINTS


def timeline(title: str, trial: Trial, colour: str, limits: Limits) -> Drawn:
    """Draw one finished trial; of more requests than ``limits.bars``, every n-th is drawn."""
    every = max(1, -(-len(trial.requests) // limits.bars))
    requests = trial.requests.take(np.argsort(trial.requests.ints("planned_ns"), kind="stable"))
    if not len(requests):
        return Drawn(Markup(""), [], every)
    starts, stops = requests.ints("planned_ns"), _ends_ns(requests)
    lanes = lanes_of(list(zip(starts.tolist(), stops.tolist(), strict=True)))
    start, end = int(starts[0]), int(stops.max())
    x = Axis(float(start), float(max(end, start + 1)), _LEFT, _RIGHT)
    step = 10.0 if max(lanes) < 24 else max(2.5, 240 / (max(lanes) + 1))
    floor = _TOP + (max(lanes) + 1) * step + 4
    tracks = [
        Track("in flight", Unit.COUNT, _steps(requests, start, end), steps=True),
        *tracks_of(trial.telemetry, start, end),
    ]
    throttled = throttling_of(trial.telemetry, start, end)
    tops = list(accumulate((track.height for track in tracks), initial=floor + _MARGIN))
    bottom = tops[-1] - _MARGIN + (throttled.height if throttled else 0)
    sample = list(zip(requests[::every], lanes[::every], stops[::every].tolist(), strict=True))
    parts = [
        _window(trial, x, bottom),
        *_time_axis(x, bottom),
        label(_LEFT - 8, _TOP + 9, "requests", "tick", "end"),
        tag("g", *_bars(sample, x, step), class_=colour),
    ]
    parts += [draw_track(track, x, top, colour, limits.points) for track, top in zip(tracks, tops, strict=False)]
    parts += [draw_throttling(throttled, x, tops[-1])] if throttled else []
    height = bottom + 34
    description = f"{len(requests)} requests over {duration_text((end - start) / NS_PER_S)}."
    svg = chart(title, description, WIDTH, height, *parts, class_="timeline", data_lane=f"{_TOP} {num(step)}")
    return Drawn(svg, [_hint(request, lane, end_ns, x) for request, lane, end_ns in sample], every)


def lanes_of(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Lane of each (start, end): the lowest free at its start, so that spans of one lane never overlap."""
    lanes = [0] * len(spans)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, end = spans[i]
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lanes[i] = heappop(free)
        else:
            lanes[i], used = used, used + 1
        heappush(busy, (max(end, start + 1), lanes[i]))
    return lanes


def in_flight(begun: Ints, ended: Ints, start: int, end: int, bins: int) -> list[int]:
    """Maximum number in flight within each of ``bins`` equal parts of ``start``…``end``."""
    times = np.concatenate([begun, ended])
    steps = np.repeat([1, -1], len(begun))
    instants, position = np.unique(times, return_inverse=True)
    changes = np.zeros(len(instants), dtype=np.int64)
    np.add.at(changes, position, steps)  # an arrival and a departure at one instant cancel
    level = np.cumsum(changes)
    edges = np.linspace(start, end, bins + 1)
    bin_of = np.clip(np.searchsorted(edges, instants, side="right") - 1, 0, bins - 1)
    carried = 0
    peaks: list[int] = []
    for i in range(bins):
        inside = level[bin_of == i]
        peaks.append(int(max(carried, inside.max(initial=0))))
        carried = int(inside[-1]) if len(inside) else carried
    return peaks


def _ends_ns(requests: Requests) -> Ints:
    """End of each bar: the last token, or the end of the exchange if the request failed."""
    chunks = requests.chunks
    return np.where(requests.is_ok & (chunks.counts > 0), chunks.last_ns, requests.ints("ended_ns"))


def _steps(requests: Requests, start: int, end: int) -> list[tuple[float, float]]:
    width = (end - start) / _BINS
    levels = in_flight(requests.ints("planned_ns"), requests.ints("ended_ns"), start, end, _BINS)
    return [(start + i * width, float(level)) for i, level in enumerate(levels)]


def _window(trial: Trial, x: Axis, bottom: float) -> Markup:
    window = trial.window
    if window.length_s <= 0:
        return label((_LEFT + _RIGHT) / 2, 14, "no window", "tick", "middle")
    left, right = x.at(window.start_ns), x.at(window.end_ns)
    return tag(
        "g",
        tag("rect", x=left, y=_TOP - 8, width=max(1.0, right - left), height=bottom - _TOP + 8, class_="window"),
        label((left + right) / 2, 14, f"window {duration_text(window.length_s)}", "tick", "middle"),
    )


def _time_axis(x: Axis, bottom: float) -> list[Markup]:
    """Seconds since the first planned request."""
    seconds = Axis(0.0, (x.high - x.low) / NS_PER_S, x.start, x.end)
    parts: list[Markup] = []
    for value in seconds.ticks(8):
        parts.append(line(seconds.at(value), _TOP - 8, seconds.at(value), bottom, "grid"))
        parts.append(label(seconds.at(value), bottom + 16, tick_text(Unit.SECONDS, value, seconds), "tick", "middle"))
    return parts


def _bars(sample: Sequence[tuple[RequestRecord, int, int]], x: Axis, step: float) -> list[Markup]:
    """All bars as one path per kind, which keeps long trials small.

    Args:
        sample: a request, its lane and the end of its bar.
        x: the axis of times.
        step: height of a lane.
    """
    paths: dict[str, list[str]] = {"wait": [], "decode": [], "warm": [], "failed": [], "first": []}
    for request, lane, end_ns in sample:
        y = _TOP + (lane + 0.5) * step
        planned, end = x.at(request.planned_ns), x.at(end_ns)
        first = x.at(request.chunk_ns[0]) if request.chunk_ns else end
        if request.phase is Phase.WARMUP:
            paths["warm"].append(_bar(planned, end, y))
        elif request.outcome is not Outcome.OK:
            paths["failed"].append(_bar(planned, end, y))
        else:
            paths["wait"].append(_bar(planned, first, y))
            paths["decode"].append(_bar(first, end, y))
            paths["first"].append(f"M{num(first)} {num(y - step * 0.42)}v{num(step * 0.84)}")
    widths = {"first": None, "failed": num(max(1.0, step * 0.34))}
    return [
        tag("path", d="".join(pieces), class_=name, stroke_width=widths.get(name, num(max(1.0, step * 0.62))))
        for name, pieces in paths.items()
        if pieces
    ]


def _bar(start: float, end: float, y: float) -> str:
    return f"M{num(start)} {num(y)}H{num(max(end, start + 0.5))}"


def _hint(request: RequestRecord, lane: int, end_ns: int, x: Axis) -> Bar:
    return Bar(
        lane=lane,
        left=round(x.at(request.planned_ns), 1),
        right=round(x.at(end_ns), 1),
        index=request.index,
        text=_request_text(request),
    )


def _request_text(request: RequestRecord) -> str:
    phase = "" if request.phase is Phase.MEASURED else f"{request.phase.value}, "
    state = phase + request.outcome.value.replace("_", " ")
    if not request.chunk_ns:
        return f"request {request.index}: {state}, no token"
    ends = (request.chunk_ns[0], request.chunk_ns[-1])
    first, last = (value_text(Unit.SECONDS, (t_ns - request.planned_ns) / NS_PER_S) for t_ns in ends)
    return f"request {request.index}: {state}, first token {first}, last {last}, {request.total_chunk_tokens} tokens"
