"""A run's summary as a Markdown table, for a README or a pull request."""

from collections.abc import Iterator, Sequence

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.quality import match_of
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.markdown import escaped, pipe_table
from bakeoff.results.text.format import ABSENT, interval_text


def markdown_table(run: Run, columns: Sequence[str] | None = None) -> str:
    """One row per load and engine: centre and 95 % interval; absent values are a dash, never 0.

    Args:
        run: a loaded run.
        columns: names in the catalogue; by default those of the summary table.
    """
    columns = run.headline if columns is None else columns
    titles = ["load", "engine", "valid", *(CATALOGUE[name].title for name in columns), "token match"]
    return pipe_table(titles, (row for level in levels_of(run) for row in _rows(level, columns)))


def _rows(level: Level, columns: Sequence[str]) -> Iterator[list[str]]:
    for number, cell in enumerate(level.cells):
        load = "" if number else escaped(level.heading)
        values = [_value(cell, name) for name in columns]
        yield [load, escaped(cell.engine), f"{cell.valid}/{cell.planned}", *values, _token_match(cell)]


def _value(cell: Cell, name: str) -> str:
    if name == "failures":
        failed, planned = cell.failures
        return f"{failed}/{planned}" if planned else ABSENT
    return interval_text(CATALOGUE[name], cell.intervals.get(name))


def _token_match(cell: Cell) -> str:
    match = match_of(cell)
    return f"{match.text} {match.answers}".rstrip()
