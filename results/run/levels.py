"""A run's cells grouped by load level, with the engines next to each other."""

import msgspec

from bakeoff.results.records import Load
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.run import Run

_BUSY_SHARE = 0.9
"""Share of a closed loop's sessions that have a request in flight; a moment between two requests is no pause."""


class Level(msgspec.Struct, frozen=True):
    """One load of one workload.

    Attributes:
        workload: its name.
        load: as planned.
        title: the load, preceded by the workload if the run has several.
        cells: one per engine, in plan order.
        turns: mean number of requests in a session; 1 if no trial has ended.
    """

    workload: str
    load: Load
    title: str
    cells: list[Cell]
    turns: float = 1.0

    @property
    def heading(self) -> str:
        """The title; where an open loop's sessions have several turns, with the requests that it offers."""
        rate = self.load.rate_per_s
        if rate is None or self.turns == 1:
            return self.title
        return f"{self.title}: offers {rate:.3g} sessions/s, {rate * self.turns:.3g} requests/s"

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
            f"{workload} · {label}" if many and load.only is None else label,
            [cell for cell in run.cells if (cell.workload, cell.load) == (workload, label)],
            _turns(run, workload, label),
        )
        for (workload, label), load in loads.items()
    ]


def _turns(run: Run, workload: str, label: str) -> float:
    records = (trial.record for trial in run.finished)
    return next(
        (one.traffic.turns for one in records if (one.workload, one.load.label) == (workload, label) and one.traffic),
        1.0,
    )


def engines_of(run: Run) -> list[str]:
    """Return the engine labels in plan order; an engine's position determines its colour."""
    return list(dict.fromkeys(plan.engine for plan in run.manifest.trials))
