"""Whether each engine meets the objectives of a run at each load."""

from enum import StrEnum

import msgspec

from bakeoff.results.metrics.objectives import Objective, objectives
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval


class State(StrEnum):
    """Whether an objective is met."""

    MET = "met"
    NOT_MET = "not met"
    OPEN = "open"
    """The interval contains the bound, or there is no value."""


class Kept(msgspec.Struct, frozen=True):
    """One objective of one engine at one load.

    Attributes:
        level: the load.
        cell: the engine at the load.
        objective: that is met or not.
        state: by the interval over trials, or by the value of a single trial.
    """

    level: Level
    cell: Cell
    objective: Objective
    state: State

    @property
    def interval(self) -> Interval | None:
        """Of the metric; None if no valid trial has it."""
        return self.cell.intervals.get(self.objective.metric)


def kept_objectives(run: Run) -> list[Kept]:
    """The objectives of a run at each load and engine; none of a search, which answers them itself."""
    texts = run.manifest.objectives if run.search is None else []
    required = [objective for text in texts for objective in objectives(text)]
    return [
        Kept(level, cell, objective, _state(objective, cell.intervals.get(objective.metric)))
        for level in levels_of(run)
        for cell in level.cells
        for objective in required
    ]


def state_of(run: Run) -> State:
    """Of all objectives at all loads: not met if any is not."""
    return worst([kept.state for kept in kept_objectives(run)])


def worst(states: list[State]) -> State:
    """Not met if any is not, else open if any is."""
    return next((state for state in (State.NOT_MET, State.OPEN) if state in states), State.MET)


def _state(objective: Objective, interval: Interval | None) -> State:
    if interval is None:
        return State.OPEN
    bounds = [bound for bound in (interval.low, interval.high) if bound is not None] or [interval.centre]
    holding = [objective.holds(bound) for bound in bounds]
    return State.MET if all(holding) else State.OPEN if any(holding) else State.NOT_MET
