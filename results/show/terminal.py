"""Tables in a terminal, readable in a pipe and without colour.

Text from engines, models and users passes :func:`~bakeoff.results.text.format.plain`, so that it cannot control the
terminal, and is printed as ``rich.text.Text``, so that it is not parsed as markup.
"""

from collections.abc import Iterable, Iterator

import rich.table
from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.text import Text

from bakeoff.results.show.footnotes import Footnotes
from bakeoff.results.show.table import Cell, Kind, Table, Tone
from bakeoff.results.text.format import plain

_ANY_WIDTH = 10_000
_STYLES = {
    None: "",
    Tone.BAD: "red",
    Tone.ZERO: "",
    Tone.BETTER: "bold green",
    Tone.WORSE: "bold red",
    Tone.SAME: "cyan",
    Tone.UNCLEAR: "yellow",
}


def print_table(table: Table, console: Console) -> None:
    """Print a table and its notes; without the details of its figures where the terminal is too narrow for them."""
    console.print(drawn([table], console))


def drawn(tables: Iterable[Table], console: Console) -> Group:
    """Draw tables as :func:`print_table` does, with footnotes for all of them."""
    footnotes = Footnotes()
    parts = [part for table in tables for part in _parts(table, console, footnotes)]
    return Group(*parts, *(Text(line, "dim") for line in footnotes.lines()))


def fits(table: Table, console: Console) -> bool:
    """Whether a console has room for a table with the details of its figures."""
    whole = _drawn(table, Footnotes(), has_details=True)
    whole.padding = (0, 0, 0, 0)
    return _width(whole, console) <= console.width


def _parts(table: Table, console: Console, footnotes: Footnotes) -> Iterator[RenderableType]:
    whole = _drawn(table, footnotes, has_details=True)
    if _width(whole, console) > console.width:
        whole.padding = (0, 0, 0, 0)
    needed = _width(whole, console)
    is_narrow = needed > console.width and any(cell.detail for row in table.rows for cell in row)
    if table.title:
        yield Text(plain(table.title), "bold")
    yield _drawn(table, footnotes, has_details=False) if is_narrow else whole
    for note in table.notes:
        yield Text(plain(note), "dim")
    if is_narrow:
        yield Text(f"a terminal of {needed} columns shows the intervals", "dim")


def _width(table: rich.table.Table, console: Console) -> int:
    """Columns that a table takes where nothing limits it."""
    return Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum


def _drawn(table: Table, footnotes: Footnotes, *, has_details: bool) -> rich.table.Table:
    shown = table.shown(Kind.NAME, Kind.FIGURE, Kind.REASON, is_narrow=True)
    drawn = terminal_table()
    for number in shown:
        column = table.columns[number]
        justify = "right" if column.kind is Kind.FIGURE else "left"
        drawn.add_column(Text(plain(column.heading)), justify=justify, overflow="fold")
    for title, rows in table.groups:
        drawn.add_section()
        if title:
            drawn.add_row(Text(plain(title), "bold"))
        for row in rows:
            subject = row[shown[0]].text
            drawn.add_row(
                *(
                    _reason(row[number], subject, footnotes)
                    if table.columns[number].kind is Kind.REASON
                    else _text(row[number], has_detail=has_details)
                    for number in shown
                )
            )
    return drawn


def _reason(cell: Cell, subject: str, footnotes: Footnotes) -> Text:
    return Text(footnotes.mark(subject, cell.text) if cell.text else "", "dim")


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
