"""Noise floors as a table: by how much identical runs differ, per metric."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bakeoff.results.compare.floor import FloorCell
from bakeoff.results.compare.text import change_text
from bakeoff.results.metrics import CATALOGUE, HEADLINE
from bakeoff.results.show.terminal import terminal_table
from bakeoff.results.statistics.comparison import scale_of
from bakeoff.results.text.format import plain


def print_floors(cells: Sequence[FloorCell], console: Console) -> None:
    """Print the noise floors of the headline metrics, level by level."""
    table = terminal_table("metric")
    table.add_column("runs differ by up to (standard deviation, 99 %)", justify="right")
    for cell in cells:
        table.add_row(Text(f"{plain(cell.series.level)}, {len(cell.runs)} runs", "bold"))
        for name in HEADLINE:
            if name in cell.bounds:
                metric = CATALOGUE[name]
                table.add_row(Text(metric.title), Text(change_text(cell.bounds[name], scale_of(metric))))
        table.add_section()
    console.print(table)
