"""Figures of other tools as tables: all tools side by side, or one tool in full, with why they differ from ours."""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.terminal import terminal_table
from bakeoff.results.text.format import ABSENT, plain, value_text
from bakeoff.results.views import VIEWS, Tool
from bakeoff.results.views.side_by_side import COLUMNS, ViewedTrial, not_in_the_log, ours, theirs, view_trials

WIDTH = 110
"""Width of the tables if the output is not a terminal."""


def print_views(run: Run, console: Console) -> None:
    """Print all tools side by side, one table per engine and load, then why they differ."""
    trials = view_trials(run)
    for level in levels_of(run):
        for cell in level.cells:
            console.print(_side_by_side(cell, level.title, trials))
            console.print()
    console.print(Text("Centre over the valid trials. Why they differ:", "bold"))
    for tool in VIEWS.values():
        console.print(Text.assemble("\n", (f"{tool.title} {tool.version}", "bold")))
        for definition in tool.definitions:
            console.print(Text(f"  {definition.name}: {definition.why}"))
    _print_cannot(list(VIEWS), trials, console)


def print_tool(run: Run, name: str, console: Console) -> None:
    """Print one tool's figures for every finished trial, under its own names, then its definitions."""
    tool, trials = VIEWS[name], view_trials(run)
    for level in levels_of(run):
        for cell in level.cells:
            members = [viewed for viewed in trials if cell.holds(viewed.trial)]
            if members:
                console.print(_in_full(name, f"{cell.engine}, {level.title}", members))
                console.print()
    console.print(_definitions(tool))
    for title, convention in msgspec.structs.asdict(tool.conventions).items():
        console.print(Text(f"{title}: {convention}"))
    _print_cannot([name], trials, console)


def _side_by_side(cell: Cell, level: str, trials: Sequence[ViewedTrial]) -> Table:
    table = _table(f"{plain(cell.engine)}, {plain(level)}")
    table.add_column("as")
    for column in COLUMNS:
        table.add_column(column.title, justify="right")
    table.add_row(Text("bakeoff", "bold"), *(Text(text, "bold") for text in _texts(ours(cell))))
    for name, centres in theirs(cell, trials).items():
        table.add_row(VIEWS[name].title, *_texts(centres))
    return table


def _texts(centres: Sequence[float | None]) -> list[str]:
    pairs = zip(COLUMNS, centres, strict=True)
    return [value_text(CATALOGUE[column.metric].unit, value) for column, value in pairs]


def _in_full(name: str, title: str, members: Sequence[ViewedTrial]) -> Table:
    table = _table(plain(title))
    table.add_column("figure")
    for viewed in members:
        mark = "" if viewed.trial.record.verdict is Verdict.VALID else " INVALID"
        table.add_column(f"repeat {viewed.trial.record.repeat}{mark}", justify="right")
    for figure in members[0].views[name].figures:
        cells = [viewed.views[name].figures.get(figure) for viewed in members]
        numbers = [None if cell is None else cell.value.value for cell in cells]
        table.add_row(figure, *(ABSENT if number is None else _number(number) for number in numbers))
    return table


def _number(value: float) -> str:
    """Two decimals, as most tools print; none for a count, more for small values."""
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"


def _definitions(tool: Tool) -> Table:
    table = _table(f"{tool.title} {tool.version} against ours (symbols: docs/views.md)")
    table.add_column("metric")
    table.add_column("definition", overflow="fold")
    table.add_column("why it differs", overflow="fold")
    for definition in tool.definitions:
        table.add_row(definition.name, definition.formula, definition.why)
    return table


def _print_cannot(names: Sequence[str], trials: Sequence[ViewedTrial], console: Console) -> None:
    """Print what the log does not contain, with the tools that need it."""
    missed = not_in_the_log(names, trials)
    if missed:
        console.print(Text("\nNot in the log:", "bold"))
    for line, titles in missed.items():
        console.print(Text(f"  {', '.join(titles)}: {line}", "yellow"))


def _table(title: str) -> Table:
    table = terminal_table()
    table.title, table.title_justify = Text(title, "bold"), "left"
    return table
