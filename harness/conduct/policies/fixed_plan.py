"""The policy of an ordinary run: a fixed list of trials, and a second attempt at those that no engine spoilt."""

from collections.abc import Sequence

import msgspec

from bakeoff.harness.conduct.policies import Done
from bakeoff.results.findings import Cause, FindingCode
from bakeoff.results.log.run_log import RunLog, TrialPlanned
from bakeoff.results.records import TrialPlan, TrialRecord, Verdict

_AGAIN = "-again"
_SPOILT_PER_REPEAT = 4
"""A run repeats one trial, and one more for each so many of its plan: more are a machine that cannot measure."""


class FixedPlan:
    """Runs every trial of a plan, except those of engines that were given up.

    A trial that is INVALID for reasons that may not recur is measured once more, right after it.

    Args:
        plan: the trials in order; those of one engine and repeat must be adjacent, and share a start.
    """

    def __init__(self, plan: Sequence[TrialPlan]) -> None:
        self._plan = plan

    def next(self, log: RunLog) -> TrialPlanned | Done:
        """The first trial that has not finished."""
        given_up = log.given_up
        remaining = [
            plan for plan in self._with_repeats(log) if plan.id not in log.finished and plan.engine not in given_up
        ]
        if not remaining:
            return Done(log.why_lost)
        first = remaining[0]
        # The engine keeps running until another turn begins, since this trial may be measured again.
        return TrialPlanned(plan=first, turn=first.repeat)

    def _with_repeats(self, log: RunLog) -> list[TrialPlan]:
        """The plan, and behind each spoilt trial its second attempt."""
        left, plans = 1 + len(self._plan) // _SPOILT_PER_REPEAT, list[TrialPlan]()
        for plan in self._plan:
            plans.append(plan)
            record = log.finished.get(plan.id)
            if left and record is not None and is_spoilt(record):
                plans.append(msgspec.structs.replace(plan, id=f"{plan.id}{_AGAIN}", replaces=plan.id))
                left -= 1
        return plans


def is_spoilt(record: TrialRecord) -> bool:
    """Whether a trial is INVALID for reasons that may not recur.

    They are the client's or the machine's, or an engine became slower, for which the machine may be the reason too.
    """
    codes = {finding.code for finding in record.invalidating}
    may_pass = all(code.cause in {Cause.CLIENT, Cause.MACHINE} or code is FindingCode.BECAME_SLOWER for code in codes)
    return record.verdict is Verdict.INVALID and bool(codes) and may_pass
