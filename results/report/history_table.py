"""A history as a table: one row for each step, with the commits between which it lies, and for each drift."""

from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from bakeoff.results.compare.series import SOUGHT, Change, Doubt, Drift, Outcome, Point, Series, outcome_of
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.show.table import Cell, Table, Tone, names
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.format import ABSENT, plain, ratio_change_text, value_text

_DIGITS = 9  # of a commit hash: unambiguous in practice
_MAX_NAMED = 5

_DOUBTS = {
    Doubt.TOO_FEW: "has too few runs to detect a step",
    Doubt.NO_VALUE: "has no value in the newest run",
    Doubt.ZERO: "is 0 in the newest run",
    Doubt.TOO_NOISY: (
        f"varies too much for its number of runs to show a step of {100 * SOUGHT:g} %: more runs narrow it"
    ),
    Doubt.OUTLIER: "is much worse in the newest run: more runs will show whether it stays",
}
_OUTCOMES = {
    Outcome.NOT_WORSE: "No series ends with a degradation.",
    Outcome.WORSE: "Worse: the newest step is a degradation in",
    Outcome.CANNOT_TELL: "Cannot tell.",
}


def print_history(series: Sequence[Series], console: Console) -> None:
    """Print steps and drifts, newest first, then excluded values and the outcome.

    Args:
        series: of one experiment.
        console: the console.
    """
    table = history_table(series)
    if table.rows:
        print_table(table, console)
    for line in history_notes(series):
        console.print(Text(line), soft_wrap=True)
    still = sum(not (entry.changes or entry.drifts) for entry in series)
    longest = max((len(entry.points) for entry in series), default=0)
    steps, drifts = sum(len(entry.changes) for entry in series), sum(len(entry.drifts) for entry in series)
    counts = f"{steps} steps and {drifts} drifts in {len(series)} series of up to {longest} runs"
    console.print(Text(f"{counts}; {still} series never changed", "dim"))
    console.print(Text(outcome_text(series)), soft_wrap=True)


class Links(msgspec.Struct, frozen=True):
    """Addresses that a table of a history leads to: of a run, and of a comparison of two ``RUN@ENGINE``."""

    run: Callable[[str], str]
    comparison: Callable[[str, str], str]


def history_table(series: Sequence[Series], links: Links | None = None) -> Table:
    """One row for each step and drift of one experiment's series, newest first."""
    found = [
        (one.first_after, _row(entry, one, (one.last_before, one.first_after), commits(one), links))
        for entry in series
        for one in entry.changes
    ]
    found += [
        (one.last, _row(entry, one, (one.first, one.last), f"drift up to {one.last.run}", links))
        for entry in series
        for one in entry.drifts
    ]
    found.sort(key=lambda pair: pair[0].created_utc, reverse=True)
    headings = names("first run after", "commits", "engine", "load", "metric", "from → to", "step")
    return Table("Steps", headings, [row for _, row in found])


def _row(
    series: Series, change: Change | Drift, ends: tuple[Point, Point], commits: str, links: Links | None
) -> list[Cell]:
    metric = CATALOGUE[series.metric]
    if isinstance(change, Change):
        run, levels = ends[1].run, (change.step.before, change.step.after)
    else:
        run, levels = ends[0].run, (change.stretch.start, change.stretch.end)
    before, after = (value_text(metric.unit, level) for level in levels)
    size = f"{ratio_change_text(levels[1] / levels[0])} {'▼ worse' if change.is_worse else '▲ better'}"
    compared = [f"{end.run}@{series.engine}" for end in ends]
    return [
        Cell(run, link=links.run(run) if links else ""),
        *map(Cell, (commits, series.engine, series.level, metric.title, f"{before} → {after}")),
        Cell(
            size,
            tone=Tone.WORSE if change.is_worse else Tone.BETTER,
            link=links.comparison(*compared) if links else "",
        ),
    ]


def history_notes(series: Sequence[Series]) -> list[str]:
    """One line for each series with zeros, and for each without a verdict."""
    zeros = [f"{title(entry)}: 0 or less in {_runs(entry)}, excluded" for entry in series if entry.zeros]
    return zeros + [f"{title(entry)} {_DOUBTS[entry.doubt]}" for entry in series if entry.doubt]


def outcome_text(series: Sequence[Series]) -> str:
    """The outcome in one sentence, naming the series that are worse."""
    outcome = outcome_of(series)
    worse = ", ".join(title(entry) for entry in series if entry.outcome is Outcome.WORSE)
    return f"{_OUTCOMES[outcome]} {worse}." if outcome is Outcome.WORSE else _OUTCOMES[outcome]


def title(series: Series) -> str:
    """``ITL p50 of vllm at c=4``."""
    return plain(f"{CATALOGUE[series.metric].title} of {series.engine} at {series.level}")


def commits(change: Change) -> str:
    """``3f9a1c2e5..8c01aa97f``: a git range that contains the cause."""
    ends = (change.last_before.commit, change.first_after.commit)
    return ABSENT if None in ends else plain("..".join(str(end).rstrip("+")[:_DIGITS] for end in ends))


def _runs(series: Series) -> str:
    named = ", ".join(point.run for point in series.zeros[-_MAX_NAMED:])
    return plain(f"{len(series.zeros)} runs, most recently {named}" if len(series.zeros) > _MAX_NAMED else named)
