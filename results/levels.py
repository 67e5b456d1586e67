"""A run's cells grouped by load level, with the engines next to each other."""

import msgspec

from results.cells import Cell
from results.records import Load
from results.run import Run

_BUSY_SHARE = 0.9
"""Share of a closed loop's sessions that have a request in flight; a moment between two requests is no pause."""


class Level(msgspec.Struct, frozen=True):
    """One load of one workload.

    Attributes:
        workload: its name.
        load: as planned.
        title: heading: the load, preceded by the workload if the run has several.
        cells: one per engine, in plan order.
    """

    workload: str
    load: Load
    title: str
    cells: list[Cell]

    def pausing(self, cell: Cell) -> float | None:
        """Mean requests in flight of a cell whose sessions pause, so that they are clearly fewer than its sessions.

        None for an open loop, and where sessions do not pause.
        """
        interval = cell.intervals.get("requests_in_flight")
        if self.load.concurrency is None or interval is None:
            return None
        return interval.centre if interval.centre < _BUSY_SHARE * self.load.concurrency else None


def levels_of(run: Run) -> list[Level]:
    """Return the levels in plan order."""
    loads = {(plan.workload, plan.load.label): plan.load for plan in run.manifest.trials}
    many = len({workload for workload, _ in loads}) > 1
    return [
        Level(
            workload,
            load,
            f"{workload} · {label}" if many else label,
            [cell for cell in run.cells if (cell.workload, cell.load) == (workload, label)],
        )
        for (workload, label), load in loads.items()
    ]


def engines_of(run: Run) -> list[str]:
    """Return the engine labels in plan order; an engine's position determines its colour."""
    return list(dict.fromkeys(plan.engine for plan in run.manifest.trials))
