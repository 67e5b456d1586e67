"""A history as tables: one line per step, with the commits between which it lies, and one per drift."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.results.compare.series import SOUGHT, Change, Doubt, Drift, Outcome, Series, outcome_of
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.show.terminal import terminal_table
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
    steps = [(entry, change) for entry in series for change in entry.changes]
    if steps:
        console.print(_steps(sorted(steps, key=lambda step: step[1].first_after.created_utc, reverse=True)))
    drifts = [(entry, drift) for entry in series for drift in entry.drifts]
    if drifts:
        console.print(_drifts(sorted(drifts, key=lambda drift: drift[1].last.created_utc, reverse=True)))
    for line in history_notes(series):
        console.print(Text(line), soft_wrap=True)
    still = sum(not (entry.changes or entry.drifts) for entry in series)
    longest = max((len(entry.points) for entry in series), default=0)
    counts = f"{len(steps)} steps and {len(drifts)} drifts in {len(series)} series of up to {longest} runs"
    console.print(Text(f"{counts}; {still} series never changed", "dim"))
    console.print(Text(outcome_text(series)), soft_wrap=True)


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


def change_texts(metric: str, before: float, after: float, *, is_worse: bool) -> tuple[str, str]:
    """``52.1 ms → 60.3 ms`` and ``+15.7 % ▼ worse``."""
    unit = CATALOGUE[metric].unit
    size = f"{ratio_change_text(after / before)} {'▼ worse' if is_worse else '▲ better'}"
    return f"{value_text(unit, before)} → {value_text(unit, after)}", size


def _steps(steps: Sequence[tuple[Series, Change]]) -> Table:
    table = _table("first run after", "commits", "step")
    for series, change in steps:
        step = change.step
        texts = change_texts(series.metric, step.before, step.after, is_worse=change.is_worse)
        where = (plain(change.first_after.run), commits(change))
        table.add_row(*_cells(series, where, texts, is_worse=change.is_worse))
    return table


def _drifts(drifts: Sequence[tuple[Series, Drift]]) -> Table:
    table = _table("from run", "to run", "drift")
    for series, drift in drifts:
        texts = change_texts(series.metric, drift.stretch.start, drift.stretch.end, is_worse=drift.is_worse)
        where = (plain(drift.first.run), plain(drift.last.run))
        table.add_row(*_cells(series, where, texts, is_worse=drift.is_worse))
    return table


def _table(first: str, second: str, last: str) -> Table:
    table = terminal_table(first, second, "engine", "load", "metric")
    table.add_column("from → to", no_wrap=True)
    table.add_column(last, justify="right", no_wrap=True)
    return table


def _cells(series: Series, where: tuple[str, str], texts: tuple[str, str], *, is_worse: bool) -> list[Text]:
    subject = (plain(series.engine), plain(series.level), CATALOGUE[series.metric].title)
    levels, size = texts
    return [*map(Text, (*where, *subject, levels)), Text(size, "bold red" if is_worse else "bold green")]


def _runs(series: Series) -> str:
    named = ", ".join(point.run for point in series.zeros[-_MAX_NAMED:])
    return plain(f"{len(series.zeros)} runs, most recently {named}" if len(series.zeros) > _MAX_NAMED else named)
