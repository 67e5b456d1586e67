"""All tools side by side: for one engine at one load, the figures of each tool below ours."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Cell, Trial
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import log_t_interval
from bakeoff.results.views import VIEWS, MetricFamily, View, views
from bakeoff.results.views.base import is_streamed


class Column(msgspec.Struct, frozen=True):
    """A column: its heading, the family and statistic of the tools' figures, and our metric."""

    title: str
    family: MetricFamily
    stat: str
    metric: str


class ViewedTrial(msgspec.Struct, frozen=True):
    """A trial with the views of every tool."""

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


def view_trials(run: Run, most: int | None = None) -> list[ViewedTrial]:
    """Finished trials with streamed answers of a run, with their views.

    Args:
        run: the run.
        most: requests of a trial; larger ones are left out. None for no limit.
    """
    streamed = (trial for trial in run.finished if is_streamed(trial))
    return [ViewedTrial(trial, views(trial)) for trial in streamed if most is None or len(trial.load) <= most]


def ours(cell: Cell) -> list[float | None]:
    """Our centre for each of :data:`COLUMNS`."""
    intervals = [cell.intervals.get(column.metric) for column in COLUMNS]
    return [interval.centre if interval else None for interval in intervals]


def theirs(cell: Cell, viewed: Sequence[ViewedTrial]) -> dict[str, list[float | None]]:
    """Each tool's centre over the cell's valid trials, for each of :data:`COLUMNS`; times in seconds."""
    valid = [item for item in viewed if cell.holds(item.trial) and item.trial.record.verdict is Verdict.VALID]
    return {name: [_centre([item.views[name] for item in valid], column) for column in COLUMNS] for name in VIEWS}


def not_in_the_log(names: Sequence[str], viewed: Sequence[ViewedTrial]) -> dict[str, list[str]]:
    """Inputs that the log does not contain, with the titles of the tools that use them."""
    missing: dict[str, dict[str, None]] = {}
    for item in viewed:
        for name in names:
            for line in item.views[name].cannot:
                missing.setdefault(line, {})[VIEWS[name].title] = None
    return {line: list(titles) for line, titles in missing.items()}


def _centre(of_trials: Sequence[View], column: Column) -> float | None:
    """Geometric mean over trials of a tool's first figure of the column."""
    key = (column.family, column.stat)
    values = [next((f.seconds for f in view.figures.values() if (f.family, f.stat) == key), None) for view in of_trials]
    interval = log_t_interval([value for value in values if value is not None])
    return interval.centre if interval else None
