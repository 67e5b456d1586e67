"""The Pareto frontier as a table."""

from collections.abc import Sequence

from rich.console import Console

from bakeoff.results.metrics import Unit
from bakeoff.results.run.frontier import FrontierPoint
from bakeoff.results.show.table import Cell, Table, figures, names
from bakeoff.results.show.terminal import print_table
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, bounds_text, scale_for


def print_frontier(points: Sequence[FrontierPoint], console: Console) -> None:
    """Print each engine's frontier; a dot marks points on the joint frontier.

    Args:
        points: from :func:`bakeoff.results.run.frontier.frontier`; those not on their engine's frontier are skipped.
        console: the console.
    """
    workloads = {point.workload for point in points}
    rows = [
        [
            Cell(f"{'●' if point.joint else ' '} {point.engine}{f' · {point.workload}' if len(workloads) > 1 else ''}"),
            Cell(point.load),
            _cell(point.interactivity),
            _cell(point.throughput),
            Cell(ABSENT if point.per_gpu is None else scale_for(Unit.COUNT, point.per_gpu).number(point.per_gpu)),
        ]
        for point in points
        if point.own
    ]
    notes = ["output tokens/s; per user: 1 / TPOT p50; ● on the Pareto frontier of all engines"]
    columns = [*names("engine", "load"), *figures(["per user", "all users", "per GPU"])]
    print_table(Table("Pareto frontier", columns, rows, notes=notes), console)


def _cell(interval: Interval) -> Cell:
    scale = scale_for(Unit.COUNT, interval.centre)
    return Cell(scale.number(interval.centre), bounds_text(interval, scale))
