"""Lanes of sessions: one for each session in progress, with its calls on a common time axis.

A call is pale while it waits (planned to first token) and solid while it decodes, as in the timelines; a failed one is
a dashed bar with a cross. A thin line goes on while a session pauses or runs tools. The calls of sub-agents lie in
thinner rows below those of the main agent; agents that work at once have rows of their own.
"""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import Unit, has_failed
from bakeoff.results.metrics.requests import prompt_length
from bakeoff.results.records import RequestRecord
from bakeoff.results.report.charts.axes import tick_text
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import chart, label, line, num, tag
from bakeoff.results.report.charts.timeline import lanes_of
from bakeoff.results.text.format import value_text
from bakeoff.results.units import NS_PER_S

WIDTH = 1100
_LEFT, _RIGHT, _TOP = 118, 990, 14
_MAIN, _SUB, _GAP = 11.0, 6.0, 7.0
"""Heights of a main agent's row and of a sub-agent's, and the gap between lanes."""
_CROSS, _MIN_SENSOR = 2.5, 3.0
_ORDER = ("pause", "wait", "decode", "failed", "cross")
_NAME = 15
"""Characters of a session's name; longer ones lose their middle."""

Session = Sequence[RequestRecord]
"""The requests of one session, in the order of their turns."""
Part = tuple[int, int]
"""Start and end of the part of a trial that is drawn, in nanoseconds."""


class _Row(msgspec.Struct, frozen=True):
    """Calls that do not overlap, ``y`` pixels below the top of their lane."""

    y: float
    height: float
    calls: list[RequestRecord]


def lanes(title: str, sessions: Sequence[Session], part: Part, colour: str) -> Markup:
    """Draw sessions from top to bottom; empty without sessions.

    Args:
        title: of the chart.
        sessions: each in progress in the part.
        part: of the trial.
        colour: CSS class of the engine.
    """
    if not sessions:
        return Markup("")
    x = Axis(float(part[0]), float(max(part[1], part[0] + 1)), _LEFT, _RIGHT)
    top, strokes = float(_TOP), _Strokes(x)
    names: list[Markup] = []
    for session in sessions:
        names += [
            label(_LEFT - 8, top + _MAIN - 1.5, _short(session[0].session), "tick", "end"),
            label(_RIGHT + 8, top + _MAIN - 1.5, _turns_text(session, part), "tick", "start"),
        ]
        rows = _rows(session, part)
        for row in rows:
            strokes.add(row, session, top)
        top += rows[-1].y + rows[-1].height + _GAP
    parts = [*_time_axis(x, top), *names, tag("g", *strokes.drawn(), class_=colour)]
    return chart(title, _description(sessions, part), WIDTH, top + 38, *parts, class_="lanes")


def _rows(session: Session, part: Part) -> list[_Row]:
    """The main agent's rows, at least one, then those of the sub-agents that are at work in the part.

    An agent stays in one row if its own calls do not overlap.
    """
    rows: list[_Row] = []
    y = 0.0
    main, others = [call for call in session if not call.agent], [call for call in session if call.agent]
    subs = [row for row in _apart(others) if overlaps(row, part)]
    for height, group in ((_MAIN, _apart(main) or [[]]), (_SUB, subs)):
        for calls in group:
            rows.append(_Row(y, height, calls))
            y += height + 1
    return rows


def _apart(calls: Session) -> list[list[RequestRecord]]:
    """Calls by row, such that those of one row do not overlap."""
    agents: dict[str, list[RequestRecord]] = {}
    for call in calls:
        agents.setdefault(call.agent, []).append(call)
    groups = [own for agent in agents.values() for own in ([agent] if _is_sequence(agent) else [[c] for c in agent])]
    numbers = lanes_of([(min(c.planned_ns for c in own), max(c.ended_ns for c in own)) for own in groups])
    rows: list[list[RequestRecord]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for number, own in zip(numbers, groups, strict=True):
        rows[number] += own
    return rows


def _is_sequence(calls: Session) -> bool:
    return max(lanes_of([(call.planned_ns, call.ended_ns) for call in calls])) == 0


class _Strokes:
    """The bars, lines and crosses of all lanes, as one path for each kind and width, and a hover text for each call.

    Args:
        x: time axis.
    """

    def __init__(self, x: Axis) -> None:
        self._x = x
        self._paths: dict[tuple[str, float], list[str]] = {}
        self._sensors: list[Markup] = []

    def add(self, row: _Row, session: Session, top: float) -> None:
        """Add a row of a session whose lane begins at ``top``."""
        whole = session if not row.y else row.calls
        started_ns, ended_ns = min(call.planned_ns for call in whole), max(call.ended_ns for call in whole)
        y = top + row.y + row.height / 2
        if started_ns < self._x.high and ended_ns > self._x.low:
            self._stroke("pause", 1.0, started_ns, ended_ns, y)
        for call in row.calls:
            if call.planned_ns < self._x.high and call.ended_ns > self._x.low:
                self._add(call, y, row.height)

    def drawn(self) -> list[Markup]:
        """The paths, those of pauses first, then what reacts to the pointer."""
        kinds = sorted(self._paths, key=lambda key: _ORDER.index(key[0]))
        paths = [tag("path", d="".join(self._paths[key]), class_=key[0], stroke_width=num(key[1])) for key in kinds]
        return [*paths, *self._sensors]

    def _add(self, call: RequestRecord, y: float, height: float) -> None:
        thick = height - 2
        if has_failed(call):
            self._stroke("failed", thick / 2, call.planned_ns, call.ended_ns, y)
            cross = f"M{num(self._x.at(call.ended_ns) - _CROSS)} {num(y - _CROSS)}l{num(2 * _CROSS)} {num(2 * _CROSS)}"
            back = f"m0 {num(-2 * _CROSS)}l{num(-2 * _CROSS)} {num(2 * _CROSS)}"
            self._paths.setdefault(("cross", 1.4), []).append(cross + back)
        else:
            first_ns = call.chunk_ns[0] if call.chunk_ns else call.ended_ns
            self._stroke("wait", thick, call.planned_ns, first_ns, y)
            self._stroke("decode", thick, first_ns, call.ended_ns, y)
        left, right = self._x.at(call.planned_ns), self._x.at(call.ended_ns)
        hint = tag("title", _call_text(call))
        width = max(_MIN_SENSOR, right - left)
        self._sensors.append(tag("rect", hint, x=left, y=y - height / 2, width=width, height=height, class_="sensor"))

    def _stroke(self, kind: str, width: float, start_ns: int, end_ns: int, y: float) -> None:
        start, end = self._x.at(start_ns), self._x.at(end_ns)
        if end > start:
            self._paths.setdefault((kind, width), []).append(f"M{num(start)} {num(y)}H{num(max(end, start + 0.4))}")


def overlaps(calls: Session, part: Part) -> bool:
    """Whether a call, or the time between two of them, lies in a part."""
    return min(call.planned_ns for call in calls) < part[1] and max(call.ended_ns for call in calls) > part[0]


def _time_axis(x: Axis, bottom: float) -> list[Markup]:
    """Seconds since the beginning of the part."""
    seconds = Axis(0.0, (x.high - x.low) / NS_PER_S, x.start, x.end)
    parts: list[Markup] = []
    for value in seconds.ticks(8):
        parts.append(line(seconds.at(value), _TOP - 6, seconds.at(value), bottom, "grid"))
        parts.append(label(seconds.at(value), bottom + 14, tick_text(Unit.SECONDS, value, seconds), "tick", "middle"))
    return [*parts, label(_RIGHT, bottom + 30, "since the window began", "axis", "end")]


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-(_NAME // 2) :]}"


def _inside(session: Session, part: Part) -> list[RequestRecord]:
    return [call for call in session if overlaps([call], part)]


def _turns_text(session: Session, part: Part) -> str:
    turns = [call.turn + 1 for call in _inside(session, part)]
    if not turns:
        return "pauses"
    return f"turn {turns[0]}" if len(set(turns)) == 1 else f"turns {min(turns)}–{max(turns)}"


def _call_text(call: RequestRecord) -> str:
    who = f"{call.agent}, " if call.agent else ""
    texts = [f"{who}turn {call.turn + 1}: {call.outcome.value.replace('_', ' ')}"]
    if (length := prompt_length(call)) is not None:
        cached = f", {call.cached_tokens:,} from the cache" if call.cached_tokens is not None else ""
        texts.append(f"prompt of {length:,} tokens{cached}")
    if call.chunk_ns:
        texts.append(f"TTFT {value_text(Unit.SECONDS, (call.chunk_ns[0] - call.planned_ns) / NS_PER_S)}")
        texts.append(f"{call.total_chunk_tokens:,} tokens")
    texts.append(f"in all {value_text(Unit.SECONDS, (call.ended_ns - call.planned_ns) / NS_PER_S)}")
    return ", ".join(texts)


def _description(sessions: Sequence[Session], part: Part) -> str:
    calls = [call for session in sessions for call in _inside(session, part)]
    subs, failed = sum(bool(call.agent) for call in calls), sum(map(has_failed, calls))
    span = value_text(Unit.SECONDS, (part[1] - part[0]) / NS_PER_S)
    many = "sessions" if len(sessions) > 1 else "session"
    return f"{len(sessions)} {many} in {span}: {len(calls)} calls, {subs} of them by sub-agents; {failed} failed."
