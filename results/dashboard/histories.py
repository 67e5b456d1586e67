"""Metrics over many runs, with their steps."""

from collections.abc import Mapping

import msgspec
from markupsafe import Markup

from results.dashboard.addresses import compare_at, report_at
from results.errors import ResultsError
from results.history import Change, Series, history_of
from results.index import Index
from results.metrics import CATALOGUE, HEADLINE
from results.report.charts.history import Level, history_chart
from results.report.format import moment_text, value_text
from results.report.history_table import commits

NEWEST = 500
"""Runs that are looked at."""
_MOST_CHARTS = 24


class Chart(msgspec.Struct, frozen=True):
    """One series."""

    title: str
    svg: Markup


class Step(msgspec.Struct, frozen=True):
    """One line of the table; texts are ready to be shown."""

    run: str
    address: str
    compare: str
    commits: str
    engine: str
    level: str
    metric: str
    change: str
    size: str
    is_worse: bool


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows.

    Attributes:
        name: title of the page.
        asked: filters as they were given.
        choices: what they may be set to.
        metrics: names and titles.
        steps: newest first.
        charts: of the series, those with steps first.
        more: series that found no room.
        problem: why there is none.
    """

    name: str
    asked: dict[str, str]
    choices: dict[str, list[str]]
    metrics: list[tuple[str, str]]
    steps: list[Step] = []
    charts: list[Chart] = []
    more: int = 0
    problem: str = ""


def history_page(index: Index, asked: Mapping[str, str]) -> HistoryPage:
    """The page for a query string.

    Args:
        index: as of the last scan.
        asked: ``name``, ``engine``, ``branch`` and ``metric``; without a name the experiment of the newest run.
    """
    choices = index.choices()
    filters = {key: asked.get(key, "") for key in ("name", "engine", "branch", "metric")}
    filters["name"] = filters["name"] or index.newest_name() or ""
    page = HistoryPage(
        name=f"History of {filters['name']}",
        asked=filters,
        choices=choices,
        metrics=[(name, CATALOGUE[name].title) for name in CATALOGUE if name != "failures"],
    )
    try:
        series = history_of(
            index, filters["name"] or None, engine=filters["engine"] or None, branch=filters["branch"] or None,
            metrics=(filters["metric"],) if filters["metric"] else HEADLINE, newest=NEWEST,
        )  # fmt: skip
    except ResultsError as error:
        return msgspec.structs.replace(page, problem=str(error))
    series.sort(key=lambda one: not one.changes)
    changes = sorted(
        ((one, change) for one in series for change in one.changes),
        key=lambda step: step[1].first_after.created_utc,
        reverse=True,
    )
    return msgspec.structs.replace(
        page,
        steps=[_step(one, change) for one, change in changes],
        charts=[_chart(one) for one in series[:_MOST_CHARTS]],
        more=max(0, len(series) - _MOST_CHARTS),
    )


def _step(series: Series, change: Change) -> Step:
    metric, step = CATALOGUE[series.metric], change.step
    before, after = (f"{point.run}@{series.engine}" for point in (change.last_before, change.first_after))
    return Step(
        run=change.first_after.run,
        address=report_at(change.first_after.run),
        compare=compare_at(before, after),
        commits=commits(change),
        engine=series.engine,
        level=series.level,
        metric=metric.title,
        change=f"{value_text(metric.unit, step.before)} → {value_text(metric.unit, step.after)}",
        size=f"{step.ratio - 1:+.1%} {'▼ worse' if change.is_worse else '▲ better'}",
        is_worse=change.is_worse,
    )


def _chart(series: Series) -> Chart:
    metric = CATALOGUE[series.metric]
    title = f"{metric.title} of {series.engine} at {series.level}"
    ends = (moment_text(series.points[0].created_utc), moment_text(series.points[-1].created_utc))
    values = [point.value for point in series.points]
    return Chart(title, history_chart(title, metric, values, _levels(series), ends))


def _levels(series: Series) -> list[Level]:
    """Between steps, and the whole where there is none."""
    values = [point.value for point in series.points]
    edges = [0, *(change.step.index for change in series.changes), len(values)]
    if not series.changes:
        return [Level(0, len(values) - 1, sorted(values)[len(values) // 2], None)]
    heights = [series.changes[0].step.before, *(change.step.after for change in series.changes)]
    words = [None, *(change.is_worse for change in series.changes)]
    return [
        Level(edges[i], edges[i + 1] - 1, height, word)
        for i, (height, word) in enumerate(zip(heights, words, strict=True))
    ]
