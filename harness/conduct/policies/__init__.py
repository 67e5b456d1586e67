"""Policies: choose what a run does next, from its log."""

from typing import Protocol

import msgspec

from bakeoff.results.log.run_log import LevelJudged, LevelsSkipped, RunLog, TrialPlanned


class Done(msgspec.Struct, frozen=True):
    """Ends the run.

    Attributes:
        failure: reasons why engines were lost; None if the run succeeded.
        notes: printed in the report.
    """

    failure: str | None = None
    notes: tuple[str, ...] = ()


Decision = TrialPlanned | LevelJudged | LevelsSkipped | Done


class Policy(Protocol):
    """Chooses trials.

    The conductor appends each decision to the log and asks again. Decisions depend only on the log, so a run that
    reuses an earlier run's trials continues where that run ended.
    """

    def next(self, log: RunLog) -> Decision:
        """The next decision. May block: it can read the files of finished trials."""
        ...
