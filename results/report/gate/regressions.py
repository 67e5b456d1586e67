"""What fails a gate beside its primary metric, or keeps it from passing, in words."""

from results.gate import GateVerdict, Regression, RegressionKind, effect_clause
from results.metrics import CATALOGUE
from results.reliability import Offence
from results.report.tallies import tally_text
from results.statistics import Judgement

_OFFENCES = {
    RegressionKind.NOT_STARTED: Offence.NOT_STARTED,
    RegressionKind.DIED: Offence.DIED,
    RegressionKind.FAILED_TRIALS: Offence.FAILED,
    RegressionKind.SATURATED: Offence.SATURATED,
}


def regression_text(verdict: GateVerdict, regression: Regression) -> str:
    """One line, of a doubt as well. It names engines: :func:`~results.text.format.plain` it."""
    compared, kind, level = verdict.compared, regression.kind, regression.level
    if kind in _OFFENCES:
        tally = next(t for t in compared.tallies if (t.offence, t.level) == (_OFFENCES[kind], level))
        return tally_text(tally, compared.a, compared.b)
    assert level is not None, "only starts belong to no load"
    if kind is RegressionKind.WORK:
        problems = "; ".join(compared.work[level].problems)
        return f"work at {level}: {compared.b} did other work than {compared.a}: {problems}"
    if kind is RegressionKind.ANSWERS:
        _, answers = compared.answers[level]
        return f"answers at {level}, of {compared.b}: {answers.differs if answers else ''}"
    comparison = next(c for c in compared.guardrails if (c.level, c.metric) == (level, regression.metric))
    metric = CATALOGUE[comparison.metric]
    if comparison.judgement is not Judgement.WORSE:
        return f"{metric.title} at {level}, of {compared.b}: {comparison.why}"
    return f"{effect_clause(compared, comparison)}; {metric.better.value} is better"


def regression_texts(verdict: GateVerdict) -> list[str]:
    """All that failed."""
    return [regression_text(verdict, regression) for regression in verdict.regressions]


def doubt_texts(verdict: GateVerdict) -> list[str]:
    """All that kept it from passing."""
    return [regression_text(verdict, doubt) for doubt in verdict.doubts]
