"""Regressions and doubts of a gate as text."""

from bakeoff.results.compare.gate import GateVerdict, Regression, RegressionKind, effect_clause
from bakeoff.results.compare.reliability import FailureMode
from bakeoff.results.compare.text import at_class, difference_text, why_text
from bakeoff.results.metrics import COMPARED
from bakeoff.results.report.quality import differing_answers_text
from bakeoff.results.report.tallies import tally_text
from bakeoff.results.statistics import Judgement

_FAILURE_MODES = {
    RegressionKind.NOT_STARTED: FailureMode.NOT_STARTED,
    RegressionKind.DIED: FailureMode.DIED,
    RegressionKind.FAILED_TRIALS: FailureMode.FAILED,
    RegressionKind.SATURATED: FailureMode.SATURATED,
    RegressionKind.SLOWED: FailureMode.SLOWED,
}


def regression_text(verdict: GateVerdict, regression: Regression) -> str:
    """One line for a regression or a doubt. It quotes engine labels: :func:`~bakeoff.results.text.format.plain` it."""
    compared, kind, level = verdict.compared, regression.kind, regression.level
    if kind in _FAILURE_MODES:
        tally = next(t for t in compared.tallies if (t.failure_mode, t.level) == (_FAILURE_MODES[kind], level))
        return tally_text(tally, compared.a, compared.b)
    assert level is not None, "only starts have no load"
    at = at_class(level, regression.traffic_class)
    if kind is RegressionKind.WORK:
        differences = "; ".join(map(difference_text, compared.work_at(level, regression.traffic_class).differences))
        return f"work at {at}: {compared.b} did different work than {compared.a}: {differences}"
    if kind is RegressionKind.ANSWERS:
        _, answers = compared.answers[level]
        assert answers is not None, "answers that differ were compared"
        return f"answers of {compared.b} at {level} {differing_answers_text(answers)}"
    comparison = next(
        one
        for one in compared.guardrails
        if (one.level, one.metric, one.traffic_class) == (level, regression.metric, regression.traffic_class)
    )
    metric = COMPARED[comparison.metric]
    if comparison.judgement is not Judgement.WORSE:
        why = why_text(compared, comparison)
        if comparison.may_be_worse(metric):
            return f"{effect_clause(compared, comparison)}; {why}"
        return f"{metric.title} of {compared.b} at {at}: {why}"
    return f"{effect_clause(compared, comparison)}; {metric.better.value} is better"


def regression_texts(verdict: GateVerdict) -> list[str]:
    """One line for each regression."""
    return [regression_text(verdict, regression) for regression in verdict.regressions]


def doubt_texts(verdict: GateVerdict) -> list[str]:
    """One line for each doubt."""
    return [regression_text(verdict, doubt) for doubt in verdict.doubts]
