"""Claims as terminal tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bakeoff.results.show.table import text_table
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.format import plain
from benchmarks.claims.interpreter import cells
from benchmarks.claims.interpreter.catalogue import Entry
from benchmarks.claims.interpreter.lab import Lab


def print_list(entries: Sequence[Entry], lab: Lab, console: Console) -> None:
    """Print each claim's statement, and what is missing to test it here."""
    for entry in entries:
        claimed = [case for case in entry.claim.cases if case.as_claimed]
        missing = [lab.missing(entry, case) for case in claimed]
        _say(console, entry.name, style="bold")
        _say(
            console, f"  {entry.claim.sentence}", f"  {cells.range_text(entry.claim.expected)}: {entry.claim.quantity}"
        )
        if None not in missing:
            _say(console, f"  not testable here: {next(iter(missing), 'no case')}", style="dim")


def print_names(rows: Sequence[cells.Row], console: Console) -> None:
    """Print one line for each claim: its name, its verdict by the newest record of each machine, and its statement."""
    names, verdicts = ([row.cells[column] for row in rows] for column in (0, 1))
    name_width, verdict_width = max(map(len, names)), max(map(len, verdicts))
    for name, verdict, row in zip(names, verdicts, rows, strict=True):
        line = f"{name:{name_width}}  {verdict:{verdict_width}}  {row.entry.claim.sentence}"
        console.print(Text(plain(line)), no_wrap=True, overflow="ellipsis")
    _say(console, "bakeoff lab claims list WORD: what the claims whose name contains WORD state, and what they need")


def print_results(rows: Sequence[cells.Row], console: Console) -> None:
    """Print one row for each claim and machine, then the open points of the verdicts."""
    texts = (row.cells for row in rows)
    print_table(text_table("Claims", cells.HEADINGS, texts, named=len(cells.HEADINGS)), console)
    _say(console, cells.tallies(rows))
    if len(rows) == 1 and rows[0].record is not None:
        _say(console, *cells.remarks(rows[0].record, rows[0].entry.claim.expected), style="dim")


def _say(console: Console, *lines: str, style: str | None = None) -> None:
    for line in lines:
        console.print(plain(line), style=style, markup=False, highlight=False)
