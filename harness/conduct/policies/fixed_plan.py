"""A plan that is known beforehand: repeat after repeat, engine after engine."""

from collections.abc import Sequence

from harness.conduct.policies import Done
from results.records import TrialPlan
from results.run_log import RunLog, TrialPlanned


class FixedPlan:
    """Every trial of a plan but those of engines that were given up; a :class:`~harness.conduct.policies.Policy`.

    Args:
        plan: the trials in order; those of an engine in one repeat stand together and share a start.
    """

    def __init__(self, plan: Sequence[TrialPlan]) -> None:
        self._plan = plan

    def next(self, log: RunLog) -> TrialPlanned | Done:
        """The first trial that has not finished."""
        given_up = log.given_up
        left = [plan for plan in self._plan if plan.id not in log.finished and plan.engine not in given_up]
        if not left:
            return Done("; ".join(lost.reason for lost in log.lost) or None)
        first = left[0]
        turn = (first.engine, first.repeat)
        ends_turn = len(left) == 1 or (left[1].engine, left[1].repeat) != turn
        return TrialPlanned(plan=first, turn=first.repeat, ends_turn=ends_turn)
