"""One metric over many runs: a dot per run, a line per level or drift."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import Metric
from bakeoff.results.report.charts.axes import tick_text, y_axis
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.svg import chart, label, line, tag
from bakeoff.results.text.format import value_text

WIDTH, HEIGHT = 560, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 552, 8, 146


class Level(msgspec.Struct, frozen=True):
    """One segment of the series: a level or a drift.

    Attributes:
        first: index of the first run.
        last: index of the last run.
        start: fitted value at the first run.
        end: fitted value at the last run.
        is_worse: than the previous level, or along the drift; None without step and drift.
        is_step: whether the segment begins with a step.
    """

    first: int
    last: int
    start: float
    end: float
    is_worse: bool | None
    is_step: bool


def history_chart(
    title: str, metric: Metric, values: Sequence[float], levels: Sequence[Level], ends: tuple[str, str]
) -> Markup:
    """Draw a series.

    Args:
        title: of the chart.
        metric: of the values.
        values: one per run, oldest first.
        levels: in order, covering all runs; empty if the runs are too few to know one.
        ends: labels under the first and the last run.
    """
    x = Axis(0, max(1, len(values) - 1), _LEFT + 4, _RIGHT - 4)
    y = _fitted(values)
    parts = [
        y_axis(y, [(tick, tick_text(metric.unit, tick, y)) for tick in y.ticks(4)], _LEFT, _RIGHT, ""),
        label(_LEFT, _BOTTOM + 18, ends[0], "tick", "start"),
        label(_RIGHT, _BOTTOM + 18, ends[1], "tick", "end") if len(values) > 1 else Markup(""),
        tag("path", d="".join(f"M{x.at(i):.1f} {y.at(value):.1f}h0" for i, value in enumerate(values)), class_="dots"),
        *(_drawn(level, x, y) for level in levels),
    ]
    return chart(title, _description(metric, values, levels), WIDTH, HEIGHT, *parts, class_="history")


def _fitted(values: Sequence[float]) -> Axis:
    """Y axis that does not start at zero: changes are a few per cent."""
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - margin, high + margin, _BOTTOM, _TOP)


def _drawn(level: Level, x: Axis, y: Axis) -> Markup:
    class_ = "" if level.is_worse is None else (" worse" if level.is_worse else " better")
    ends = (x.at(level.first) - 3, y.at(level.start), x.at(level.last) + 3, y.at(level.end))
    parts = [line(*ends, f"level-line{class_}")]
    if level.is_step:
        edge = x.at(level.first - 0.5)
        parts.append(line(edge, _TOP, edge, _BOTTOM, f"step{class_}"))
    return tag("g", *parts)


def _description(metric: Metric, values: Sequence[float], levels: Sequence[Level]) -> str:
    changes = [
        f"{'worse' if level.is_worse else 'better'} from run {level.first + 1}: {value_text(metric.unit, level.start)}"
        + (f", drifting to {value_text(metric.unit, level.end)}" if level.end != level.start else "")
        for level in levels
        if level.is_worse is not None
    ]
    return f"{len(values)} runs, the last {value_text(metric.unit, values[-1])}. {'; '.join(changes) or 'No step.'}"
