"""Policies: what a run does next, as a function of its log."""

from typing import Protocol

import msgspec

from results.run_log import LevelJudged, LevelsSkipped, RunLog, TrialPlanned


class Done(msgspec.Struct, frozen=True):
    """Nothing is left to measure.

    Attributes:
        failure: what went wrong with engines; None where nothing did.
        notes: declarations that the report prints.
    """

    failure: str | None = None
    notes: tuple[str, ...] = ()


Decision = TrialPlanned | LevelJudged | LevelsSkipped | Done


class Policy(Protocol):
    """Chooses trials.

    The conductor stores each decision in the log and asks again. The same log gives the same decision, so a run that is
    resumed with the trials of an earlier one goes on where that ended.
    """

    def next(self, log: RunLog) -> Decision:
        """The next decision; it may read the files of finished trials, and takes its time."""
        ...
