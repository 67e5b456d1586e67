"""The history page: metrics over many runs, with steps and drifts."""

from collections.abc import Mapping

import msgspec
from markupsafe import Markup

from bakeoff.results.compare.series import Series, is_worse
from bakeoff.results.dashboard.addresses import compare_at, report_at
from bakeoff.results.errors import ResultsError
from bakeoff.results.history.history import history_of, why_no_steps
from bakeoff.results.index import Index
from bakeoff.results.metrics import CATALOGUE, HEADLINE
from bakeoff.results.report.charts.history import Level, history_chart
from bakeoff.results.report.history_table import Links, history_notes, history_table, outcome_text, title
from bakeoff.results.show.table import Table
from bakeoff.results.text.format import moment_text

NEWEST = 500
"""Maximum number of runs to analyse, newest first."""
_MAX_CHARTS = 24
_MIN_DRAWN = 2
"""A single run is in the list, and shows nothing over time."""


class Chart(msgspec.Struct, frozen=True):
    """Chart of one series."""

    title: str
    svg: Markup


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the page.

    Attributes:
        name: title of the page.
        filters: as given.
        choices: possible values of each filter.
        metrics: names and titles.
        steps: steps and drifts, newest first.
        outcome: of the newest run.
        notes: omitted zeros, series too short to test, and runs that cannot be read.
        charts: of the series, those with steps first.
        more: number of series without a chart.
        problem: why there is no history.
    """

    name: str
    filters: dict[str, str]
    choices: dict[str, list[str]]
    metrics: list[tuple[str, str]]
    steps: Table | None = None
    outcome: str = ""
    notes: list[str] = []
    charts: list[Chart] = []
    more: int = 0
    problem: str = ""


def history_page(index: Index, query: Mapping[str, str]) -> HistoryPage:
    """The page for a query string.

    Args:
        index: of the folder of runs.
        query: ``name``, ``engine``, ``branch`` and ``metric``; the default name is that of the newest run.
    """
    choices = index.choices()
    filters = {key: query.get(key, "") for key in ("name", "engine", "branch", "metric")}
    filters["name"] = filters["name"] or index.newest_name() or ""
    page = HistoryPage(
        name=f"History of {filters['name']}",
        filters=filters,
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
    no_steps = why_no_steps(series)
    drawn = [entry for entry in series if len(entry.points) >= _MIN_DRAWN]
    if no_steps and not drawn:
        return msgspec.structs.replace(page, problem=no_steps)
    drawn.sort(key=lambda entry: not (entry.changes or entry.drifts))
    return msgspec.structs.replace(
        page,
        steps=history_table(series, Links(report_at, compare_at)),
        outcome=f"Cannot tell: {no_steps}." if no_steps else outcome_text(series),
        notes=[*([] if no_steps else history_notes(series)), *index.left_out()],
        charts=[_chart(entry) for entry in drawn[:_MAX_CHARTS]],
        more=max(0, len(drawn) - _MAX_CHARTS),
    )


def _chart(series: Series) -> Chart:
    ends = (moment_text(series.points[0].created_utc), moment_text(series.points[-1].created_utc))
    values = [point.value for point in series.points]
    name = title(series)
    return Chart(name, history_chart(name, CATALOGUE[series.metric], values, _levels(series), ends))


def _levels(series: Series) -> list[Level]:
    """Levels between edges; none if there are too few points for edges."""
    if series.course is None:
        return []
    steps = {change.step.index: change.is_worse for change in series.changes}
    return [
        Level(
            stretch.first,
            stretch.last,
            stretch.start,
            stretch.end,
            is_worse(series.metric, stretch.start, stretch.end) if stretch.is_drift else steps.get(stretch.first),
            is_step=stretch.first in steps,
        )
        for stretch in series.course.stretches
    ]
