"""Figures of the engine's own view as text."""

from bakeoff.results.metrics import Unit
from bakeoff.results.run.cells import Cell
from bakeoff.results.server_view import ENGINE_FIGURES
from bakeoff.results.show.footnotes import Footnotes
from bakeoff.results.text.format import ABSENT, value_text

_WHOLE_FROM = 100
"""Counts from here on are written without decimals."""


def figure_text(cell: Cell, name: str, title: str, notes: Footnotes) -> str:
    """A figure of the engine over a cell's trials, or the mark of the footnote with the reason for its absence."""
    interval = cell.server.intervals.get(name)
    if interval is None:
        reason = cell.server.why or cell.server.reasons[name]
        subject = cell.engine if cell.server.why else f"{title} of {cell.engine}"
        return f"{ABSENT} {notes.mark(subject, reason)}"
    unit, value = ENGINE_FIGURES[name].unit, interval.centre
    if unit is not Unit.COUNT:
        return value_text(unit, value)
    return f"{value:.3g}" if value < _WHOLE_FROM else f"{value:,.0f}"
