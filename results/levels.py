"""A run's cells grouped by load level, so that the engines stand next to each other."""

import msgspec

from results.records import Load
from results.run import Cell, Run


class Level(msgspec.Struct, frozen=True):
    """One load of one workload.

    Attributes:
        workload: its name.
        load: as planned.
        title: heading: the load, after the workload's name where the run has more than one.
        cells: one per engine, in the order of the plan.
    """

    workload: str
    load: Load
    title: str
    cells: list[Cell]


def levels_of(run: Run) -> list[Level]:
    """The levels in the order of the plan."""
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
    """Engine labels in the order of the plan; their positions choose their colours."""
    return list(dict.fromkeys(plan.engine for plan in run.manifest.trials))
