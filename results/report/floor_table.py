"""Noise floors as a table: by how much identical runs differ, per metric."""

from collections.abc import Sequence

from bakeoff.results.compare.floor import FloorCell
from bakeoff.results.compare.text import change_text
from bakeoff.results.metrics import CATALOGUE, HEADLINE
from bakeoff.results.show.table import Cell, Column, Kind, Table
from bakeoff.results.statistics.comparison import scale_of


def floor_table(cells: Sequence[FloorCell]) -> Table:
    """The noise floors of the headline metrics, level by level."""
    rows = [
        [
            Cell(f"{cell.series.level}, {len(cell.runs)} runs"),
            Cell(CATALOGUE[name].title),
            Cell(change_text(cell.bounds[name], scale_of(CATALOGUE[name]))),
        ]
        for cell in cells
        for name in HEADLINE
        if name in cell.bounds
    ]
    columns = [
        Column("load", Kind.GROUP),
        Column("metric", Kind.NAME),
        Column("runs differ by up to (standard deviation, 99 %)"),
    ]
    return Table("Noise floors", columns, rows)
