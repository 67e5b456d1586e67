"""Waterfalls of single requests: their chunks on a time axis that starts at each request's planned time.

The pale part is the wait for the first token, with a mark at the send time; each vertical stroke is a chunk.
"""

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from bakeoff.results.metrics import Unit
from bakeoff.results.records import RequestRecord
from bakeoff.results.report.charts.axes import tick_text
from bakeoff.results.report.charts.paths import dashes
from bakeoff.results.report.charts.scales import Axis, zero_axis
from bakeoff.results.report.charts.svg import chart, label, line, num, tag
from bakeoff.results.text.format import value_text
from bakeoff.results.units import NS_PER_S

WIDTH = 1100
_LEFT, _RIGHT, _TOP, _ROW, _BAR, _STROKE = 118, 990, 22, 36, 8, 14


def waterfall(title: str, requests: Sequence[RequestRecord], colour: str, most: int) -> Markup:
    """Draw requests; empty without requests.

    Args:
        title: of the chart.
        requests: from top to bottom, each with at least one chunk.
        colour: CSS class of the engine.
        most: maximum number of strokes per row; of more chunks every n-th is drawn, and the row says so.
    """
    if not requests:
        return Markup("")
    x = zero_axis([_seconds(request, request.chunk_ns[-1]) for request in requests], _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(requests)
    parts: list[Markup] = []
    for value in x.ticks(8):
        parts.append(line(x.at(value), _TOP - 4, x.at(value), bottom, "grid"))
        parts.append(label(x.at(value), bottom + 16, tick_text(Unit.SECONDS, value, x), "tick", "middle"))
    rows = [_row(request, x, _TOP + _ROW * i, most) for i, request in enumerate(requests)]
    parts += [tag("g", *rows, class_=colour), label(_RIGHT, bottom + 32, "since its plan", "axis", "end")]
    description = " ".join(_request_text(request) for request in requests)
    return chart(title, description, WIDTH, bottom + 38, *parts, class_="waterfall")


def longest_gap_s(request: RequestRecord) -> tuple[float, int] | None:
    """Longest gap between chunks in seconds, and the number (from 1) of the chunk that ends it; None without gaps."""
    gaps = [(later - before, i) for i, (before, later) in enumerate(pairwise(request.chunk_ns), start=2)]
    if not gaps:
        return None
    gap_ns, chunk = max(gaps)
    return gap_ns / NS_PER_S, chunk


def _row(request: RequestRecord, x: Axis, top: float, most: int) -> Markup:
    middle = top + 18
    times = [_seconds(request, t_ns) for t_ns in request.chunk_ns]
    first, last = x.at(times[0]), x.at(times[-1])
    every = -(-len(times) // most)
    strokes = dashes([(x.at(t), middle) for t in times[::every]])
    thinned = f", one in {every} drawn" if every > 1 else ""
    parts = [
        tag("path", d=f"M{_LEFT} {num(middle)}H{num(first)}", class_="wait", stroke_width=_BAR),
        tag("path", d=f"M{num(first)} {num(middle)}H{num(last)}", class_="span", stroke_width=1.5),
        tag("path", d=strokes, class_="chunks"),
        label(_LEFT - 8, middle + 4, f"request {request.index}", "tick", "end"),
        label(_RIGHT + 8, middle, f"E2E {value_text(Unit.SECONDS, times[-1])}", "tick"),
        label(_RIGHT + 8, middle + 13, f"{len(times):,} chunks{thinned}", "tick"),
    ]
    if request.sent_ns is not None:
        sent = x.at(_seconds(request, request.sent_ns))
        parts.append(tag("path", d=f"M{num(sent)} {num(middle - _BAR / 2 - 2)}v{_BAR + 4}", class_="sent"))
    longest = longest_gap_s(request)
    if longest is not None:
        ended = times[longest[1] - 1]
        at = min(_RIGHT - 40, max(_LEFT + 60, x.at(ended - longest[0] / 2)))
        text = f"longest gap {value_text(Unit.SECONDS, longest[0])}"
        parts.append(label(at, middle - _STROKE / 2 - 3, text, "level", "middle"))
    return tag("g", *parts)


def _seconds(request: RequestRecord, t_ns: int) -> float:
    return (t_ns - request.planned_ns) / NS_PER_S


def _request_text(request: RequestRecord) -> str:
    first, last = (value_text(Unit.SECONDS, _seconds(request, t)) for t in (request.chunk_ns[0], request.chunk_ns[-1]))
    longest = longest_gap_s(request)
    gap = f", longest gap {value_text(Unit.SECONDS, longest[0])} before chunk {longest[1]}" if longest else ""
    return f"Request {request.index}: first token {first}, last {last}, {len(request.chunk_ns)} chunks{gap}."
