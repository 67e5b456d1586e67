"""The policy of an ordinary run: a fixed list of trials, and further attempts at those that no engine spoilt."""

from collections.abc import Sequence

import msgspec

from bakeoff.harness.conduct.policies import Done
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import is_of_surroundings
from bakeoff.results.log.run_log import RunLog, TrialPlanned
from bakeoff.results.records import TrialPlan, TrialRecord, Verdict
from bakeoff.results.text.findings import main_reason

_AGAIN = "-again"
_LEAST_ATTEMPTS = 2
"""Further attempts of a short run. A longer one has as many as planned trials, so that it takes at most twice its time:
of runs of six trials, each of which a machine spoils with 30 %, 96 % become whole."""
_HOPELESS = 6
"""The run ends, with what it has, when so many trials in a row were spoilt by the same cause."""


class FixedPlan:
    """Runs every trial of a plan, except those of engines that were given up.

    A trial that is INVALID for reasons that may not recur is measured again, right after it.

    Args:
        plan: the trials in order; those of one engine and repeat must be adjacent, and share a start.
    """

    def __init__(self, plan: Sequence[TrialPlan]) -> None:
        self._plan = plan

    def next(self, log: RunLog) -> TrialPlanned | Done:
        """The first trial that has not finished."""
        if hopeless := _why_hopeless(log):
            return Done(log.why_lost, notes=(hopeless,))
        given_up = log.given_up
        remaining = [
            plan for plan in self._with_attempts(log) if plan.id not in log.finished and plan.engine not in given_up
        ]
        if not remaining:
            return Done(log.why_lost)
        first = remaining[0]
        # The engine keeps running until another turn begins, since this trial may be measured again.
        return TrialPlanned(plan=first, turn=first.repeat)

    def _with_attempts(self, log: RunLog) -> list[TrialPlan]:
        """The plan, and behind each spoilt trial its further attempts."""
        left, plans = max(_LEAST_ATTEMPTS, len(self._plan)), list[TrialPlan]()
        for plan in self._plan:
            plans.append(plan)
            while left and (record := log.finished.get(plans[-1].id)) is not None and may_pass(record):
                attempt = plans[-1].attempt + 1
                again = f"{plan.id}{_AGAIN}" if attempt == 1 else f"{plan.id}{_AGAIN}-{attempt}"
                plans.append(msgspec.structs.replace(plan, id=again, replaces=plans[-1].id, attempt=attempt))
                left -= 1
        return plans


def may_pass(record: TrialRecord) -> bool:
    """Whether another attempt at a spoilt trial may succeed.

    An engine that became slower may do so by itself: the second time it is the engine's result.
    """
    became_slower = any(finding.code is FindingCode.BECAME_SLOWER for finding in record.invalidating)
    return is_spoilt(record) and not (became_slower and record.attempt)


def is_spoilt(record: TrialRecord) -> bool:
    """Whether a trial is INVALID for reasons that may not recur.

    They are the client's or the machine's, or an engine became slower, for which the machine may be the reason too.
    """
    others = (finding for finding in record.invalidating if finding.code is not FindingCode.BECAME_SLOWER)
    has_reasons = record.verdict is Verdict.INVALID and bool(record.invalidating)
    return has_reasons and is_of_surroundings(others)


def _why_hopeless(log: RunLog) -> str | None:
    """Why the run ends early: the last trials were all spoilt by the same cause; None if they were not."""
    last = [record for record in log.finished.values() if record.reused_from is None][-_HOPELESS:]
    codes = [{finding.code for finding in record.invalidating} for record in last if is_spoilt(record)]
    if len(codes) < _HOPELESS or not set.intersection(*codes) - {FindingCode.BECAME_SLOWER}:
        return None
    return f"ended early, because {_HOPELESS} trials in a row were spoilt: {main_reason(last)}"
