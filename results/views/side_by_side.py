"""All tools side by side: for one engine at one load, a row of each tool's numbers below ours."""

from collections.abc import Sequence

import msgspec

from results.records import Verdict
from results.run import Cell, Run, Trial
from results.statistics.interval import log_t_interval
from results.views import VIEWS, MetricFamily, View, views


class Column(msgspec.Struct, frozen=True):
    """A heading, what of a tool stands below it, which statistic of that, and which metric of ours."""

    title: str
    family: MetricFamily
    stat: str
    metric: str


class ViewedTrial(msgspec.Struct, frozen=True):
    """A trial with what every tool would have said of it."""

    trial: Trial
    views: dict[str, View]


COLUMNS = (
    Column("TTFT p50", MetricFamily.TTFT, "p50", "ttft_p50_s"),
    Column("ITL p50", MetricFamily.ITL, "p50", "itl_p50_s"),
    Column("TPOT p50", MetricFamily.TPOT, "p50", "tpot_p50_s"),
    Column("E2E p50", MetricFamily.E2E, "p50", "e2e_p50_s"),
    Column("tokens out", MetricFamily.OUTPUT_RATE, "", "output_tokens_per_s"),
    Column("requests", MetricFamily.REQUEST_RATE, "", "requests_per_s"),
)


def view_trials(run: Run) -> list[ViewedTrial]:
    """Every finished trial of a run, viewed."""
    return [ViewedTrial(trial, views(trial)) for trial in run.finished]


def ours(cell: Cell) -> list[float | None]:
    """Our centre for each of :data:`COLUMNS`."""
    found = [cell.intervals.get(column.metric) for column in COLUMNS]
    return [interval.centre if interval else None for interval in found]


def theirs(cell: Cell, seen: Sequence[ViewedTrial]) -> dict[str, list[float | None]]:
    """Each tool's centre over the cell's valid trials, for each of :data:`COLUMNS`; times in seconds."""
    valid = [one for one in seen if cell.holds(one.trial) and one.trial.record.verdict is Verdict.VALID]
    return {name: [_centre([one.views[name] for one in valid], column) for column in COLUMNS] for name in VIEWS}


def not_in_the_log(names: Sequence[str], seen: Sequence[ViewedTrial]) -> dict[str, list[str]]:
    """What the log does not hold, with the titles of the tools that would have looked at it."""
    missed: dict[str, dict[str, None]] = {}
    for one in seen:
        for name in names:
            for line in one.views[name].cannot:
                missed.setdefault(line, {})[VIEWS[name].title] = None
    return {line: list(titles) for line, titles in missed.items()}


def _centre(found: Sequence[View], column: Column) -> float | None:
    """Geometric mean over trials of a tool's first figure of that kind."""
    wanted = (column.family, column.stat)
    values = [next((f.seconds for f in view.figures.values() if (f.family, f.stat) == wanted), None) for view in found]
    interval = log_t_interval([value for value in values if value is not None])
    return interval.centre if interval else None
