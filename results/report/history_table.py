"""A history as a table: one line for each step, with the commits between which it lies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.metrics import CATALOGUE
from results.report.format import ABSENT, plain, value_text

if TYPE_CHECKING:
    from results.history import Change, Series

_DIGITS = 9  # of a commit: enough for git in any checkout


def print_history(series: "Sequence[Series]", console: Console) -> None:
    """Print the steps, newest first, and what did not change.

    Args:
        series: of one experiment.
        console: where to.
    """
    steps = [(one, change) for one in series for change in one.changes]
    if steps:
        console.print(_table(sorted(steps, key=lambda step: step[1].first_after.created_utc, reverse=True)))
    still = sum(not one.changes for one in series)
    longest = max((len(one.points) for one in series), default=0)
    text = f"{len(steps)} steps in {len(series)} series of up to {longest} runs; {still} series never changed"
    console.print(Text(text, "dim"))


def _table(steps: "Sequence[tuple[Series, Change]]") -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in ("first run after", "commits", "engine", "load", "metric"):
        table.add_column(heading, overflow="fold")
    table.add_column("from → to", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    for series, change in steps:
        metric, step = CATALOGUE[series.metric], change.step
        worse = ("▼ worse", "bold red") if change.is_worse else ("▲ better", "bold green")
        table.add_row(
            Text(plain(change.first_after.run)),
            Text(commits(change)),
            Text(plain(series.engine)),
            Text(plain(series.level)),
            Text(metric.title),
            Text(f"{value_text(metric.unit, step.before)} → {value_text(metric.unit, step.after)}"),
            Text(f"{step.ratio - 1:+.1%} {worse[0]}", worse[1]),
        )
    return table


def commits(change: "Change") -> str:
    """``3f9a1c2e5..8c01aa97f``: after the one, up to the other; as git takes it."""
    ends = (change.last_before.commit, change.first_after.commit)
    return ABSENT if None in ends else plain("..".join(str(end).rstrip("+")[:_DIGITS] for end in ends))
