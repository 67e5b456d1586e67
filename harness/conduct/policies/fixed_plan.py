"""The policy of an ordinary run: a fixed list of trials."""

from collections.abc import Sequence

from bakeoff.harness.conduct.policies import Done
from bakeoff.results.log.run_log import RunLog, TrialPlanned
from bakeoff.results.records import TrialPlan


class FixedPlan:
    """Runs every trial of a plan, except those of engines that were given up.

    Args:
        plan: the trials in order; those of one engine and repeat must be adjacent, and share a start.
    """

    def __init__(self, plan: Sequence[TrialPlan]) -> None:
        self._plan = plan

    def next(self, log: RunLog) -> TrialPlanned | Done:
        """The first trial that has not finished."""
        given_up = log.given_up
        remaining = [plan for plan in self._plan if plan.id not in log.finished and plan.engine not in given_up]
        if not remaining:
            return Done(log.why_lost)
        first = remaining[0]
        turn = (first.engine, first.repeat)
        ends_turn = len(remaining) == 1 or (remaining[1].engine, remaining[1].repeat) != turn
        return TrialPlanned(plan=first, turn=first.repeat, ends_turn=ends_turn)
