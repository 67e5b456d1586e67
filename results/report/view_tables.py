"""Figures of other tools as tables: all tools side by side, or one tool in full, with why they differ from ours."""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table, text_table
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.format import ABSENT, value_text
from bakeoff.results.views import VIEWS, Tool
from bakeoff.results.views.side_by_side import COLUMNS, ViewedTrial, not_in_the_log, ours, theirs, view_trials

WIDTH = 110
"""Width of the tables if the output is not a terminal."""


def print_views(run: Run, console: Console) -> None:
    """Print all tools side by side, one table per engine and load, then why they differ."""
    trials = view_trials(run)
    for level in levels_of(run):
        for cell in level.cells:
            print_table(_side_by_side(cell, level.title, trials), console)
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
                print_table(_in_full(name, f"{cell.engine}, {level.title}", members), console)
                console.print()
    print_table(_definitions(tool), console)
    for title, convention in msgspec.structs.asdict(tool.conventions).items():
        console.print(Text(f"{title}: {convention}"))
    _print_cannot([name], trials, console)


def _side_by_side(cell: Cell, level: str, trials: Sequence[ViewedTrial]) -> Table:
    rows = [("bakeoff", ours(cell)), *((VIEWS[name].title, centres) for name, centres in theirs(cell, trials).items())]
    headings = ["as", *(column.title for column in COLUMNS)]
    title = f"{cell.engine}, {level}"
    return text_table(title, headings, ([name, *_texts(centres)] for name, centres in rows), title=title)


def _texts(centres: Sequence[float | None]) -> list[str]:
    pairs = zip(COLUMNS, centres, strict=True)
    return [value_text(CATALOGUE[column.metric].unit, value) for column, value in pairs]


def _in_full(name: str, title: str, members: Sequence[ViewedTrial]) -> Table:
    marks = ("" if viewed.trial.record.verdict is Verdict.VALID else " INVALID" for viewed in members)
    repeats = (viewed.trial.record.repeat for viewed in members)
    headings = ["figure", *(f"repeat {repeat}{mark}" for repeat, mark in zip(repeats, marks, strict=True))]
    rows: list[list[str]] = []
    for figure in members[0].views[name].figures:
        cells = [viewed.views[name].figures.get(figure) for viewed in members]
        numbers = [None if cell is None else cell.value.value for cell in cells]
        rows.append([figure, *(ABSENT if number is None else _number(number) for number in numbers)])
    return text_table(title, headings, rows, title=title)


def _number(value: float) -> str:
    """Two decimals, as most tools print; none for a count, more for small values."""
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"


def _definitions(tool: Tool) -> Table:
    headings = ["metric", "definition", "why it differs"]
    rows = ([definition.name, definition.formula, definition.why] for definition in tool.definitions)
    title = f"{tool.title} {tool.version} against ours (symbols: docs/views.md)"
    return text_table(title, headings, rows, named=len(headings), title=title)


def _print_cannot(names: Sequence[str], trials: Sequence[ViewedTrial], console: Console) -> None:
    """Print what the log does not contain, with the tools that need it."""
    missed = not_in_the_log(names, trials)
    if missed:
        console.print(Text("\nNot in the log:", "bold"))
    for line, titles in missed.items():
        console.print(Text(f"  {', '.join(titles)}: {line}", "yellow"))
