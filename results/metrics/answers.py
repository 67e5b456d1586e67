"""Answers that are scored: how many are right under load."""

from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics.declaration import Needs, TrialData, TrialMetric
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.requests import Requests


def scored(data: TrialData) -> Requests:
    """The scored answers, of the successful requests planned in the window."""
    answered = data.inside.ok
    return answered.take(~answered.equal("is_right", None))


def _right(data: TrialData) -> Value:
    found = data.once(scored)
    right = int(found.equal("is_right", True).sum())
    return Value(right / len(found)) if len(found) else absent("the workload scores no answers")


METRICS = (
    TrialMetric(
        name="right_share",
        title="right answers",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition="share of the scored answers that are right; failed requests, and JSON that was cut, are not scored",
        observation="a scored answer to a request planned in the window",
        roles=frozenset({Role.HEADLINE, Role.GUARDRAIL, Role.IF_PRESENT, Role.PER_TOKEN}),
        needs=Needs.PLANNED,
        of=_right,
        count=lambda data: len(data.once(scored)),
    ),
)
