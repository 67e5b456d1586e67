"""Cells that name engines in their colours."""

from collections.abc import Callable

from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell


def engine_cells(run: Run) -> Callable[[str], Cell]:
    """Make the cell of an engine of the run from its label."""
    engines = engines_of(run)
    return lambda engine: Cell(engine, colour=engine_class(engines.index(engine)))
