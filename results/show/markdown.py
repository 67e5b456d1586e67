"""Tables as Markdown, for a pull request or a page of the documentation."""

from collections.abc import Iterable, Sequence

from bakeoff.results.show.table import TEXTS, Table
from bakeoff.results.text.format import plain

_ESCAPED = str.maketrans({"|": "\\|", "<": "&lt;", ">": "&gt;", "\n": " "})


def markdown(table: Table) -> str:
    """Write a table and its notes, which are one small paragraph; an empty column is left out."""
    shown = [number for number in table.shown(*TEXTS) if any(row[number].text for row in table.rows)]
    rows = (
        [escaped(f"{row[number].text} {row[number].detail}".rstrip()) for number in shown]
        for _, rows in table.groups
        for row in rows
    )
    notes = [f"\n<sub>{'<br>'.join(map(escaped, table.notes))}</sub>\n"] if table.notes else []
    return "".join((pipe_table([table.columns[number].heading for number in shown], rows), *notes))


def pipe_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; cells must already be :func:`escaped`."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (titles, ["---"] * len(titles), *rows))


def escaped(text: str) -> str:
    """Escape untrusted text for a table cell: one line, no cell end, no tag."""
    return plain(text).translate(_ESCAPED)
