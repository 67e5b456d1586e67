"""Tables in a terminal, readable in a pipe and without colour.

Text from engines, models and users passes :func:`~bakeoff.results.text.format.plain`, so that it cannot control the
terminal, and is printed as ``rich.text.Text``, so that it is not parsed as markup.
"""

from collections.abc import Sequence

import rich.table
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from bakeoff.results.show.table import Cell, Table, Tone
from bakeoff.results.text.format import plain

_ANY_WIDTH = 10_000
_STYLES = {None: "", Tone.BAD: "red", Tone.ZERO: ""}


def print_table(table: Table, console: Console) -> None:
    """Print a table and its notes; without the details of its figures where the terminal is too narrow for them."""
    shown = [number for number, column in enumerate(table.columns) if not column.is_wide]
    drawn = _drawn(table, shown, has_details=True)
    needed = Measurement.get(console, console.options.update_width(_ANY_WIDTH), drawn).maximum
    has_details = any(row[number].detail for row in table.rows for number in shown)
    notes = list(table.notes)
    if needed > console.width and has_details:
        drawn = _drawn(table, shown, has_details=False)
        notes.append(f"a terminal of {needed} columns shows the intervals")
    if table.title:
        console.print(Text(plain(table.title), "bold"))
    console.print(drawn)
    for note in notes:
        console.print(Text(plain(note), "dim"))


def _drawn(table: Table, shown: Sequence[int], *, has_details: bool) -> rich.table.Table:
    drawn = terminal_table()
    for number in shown:
        column = table.columns[number]
        drawn.add_column(
            f"{column.group} {column.title}".strip(), justify="right" if column.is_number else "left", overflow="fold"
        )
    for row in (*table.rows, *([table.total] if table.total else [])):
        if row is table.total:
            drawn.add_section()
        drawn.add_row(*(_text(row[number], has_detail=has_details) for number in shown))
    return drawn


def _text(cell: Cell, *, has_detail: bool) -> Text:
    text = Text(plain(cell.text), _STYLES[cell.tone])
    return text.append(f"\n{plain(cell.detail)}", "dim") if has_detail and cell.detail else text


def terminal_table(*headings: str, gap: int = 1) -> rich.table.Table:
    """Make a table with a rule below its head, readable in a pipe and without colour.

    Args:
        headings: headings of the first columns, which wrap long text; callers add the others.
        gap: characters between columns.
    """
    table = rich.table.Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
