"""May this change be merged? One of three outcomes of a comparison, and the sentence that says why.

The primary metric decides: a regression is an interval that leaves 1 out on the bad side; no regression one that shows
that B is worse by no more than the band. Everything between is neither, and is said to be so. A guardrail that is worse
(Holm), more failed requests (Fisher 1935) and answers that differ from the reference's fail the gate too.
"""

import math
from enum import StrEnum

import msgspec

from results.comparing import Compared, SideOfRun, Terms, compare_sides
from results.errors import NoEvidence
from results.metrics import CATALOGUE
from results.quality import QualitySummary
from results.records import Verdict
from results.report.format import ratio_text
from results.statistics import Comparison, Judgement

LEAST_RUNS = 2


class Outcome(StrEnum):
    """What the gate says."""

    NO_REGRESSION = "no regression"
    REGRESSION = "regression"
    CANNOT_TELL = "cannot tell"


class Failures(msgspec.Struct, frozen=True):
    """Failed requests at one load level, of valid trials.

    Attributes:
        level: label of the load.
        a: failed requests of the baseline, and all of them.
        b: the same of the candidate.
        p_value: of so many on B's side if both fail as often; requests count as independent, which they are not quite.
    """

    level: str
    a: tuple[int, int]
    b: tuple[int, int]
    p_value: float


class GateVerdict(msgspec.Struct, frozen=True):
    """The outcome and what it rests on.

    Attributes:
        outcome: the word.
        sentence: of the primary metric.
        regressions: what failed the gate beside it, a line each.
        notes: what a reader must know: trials that did not count.
        failures: by level.
        compared: all comparisons.
    """

    outcome: Outcome
    sentence: str
    regressions: list[str]
    notes: list[str]
    failures: list[Failures]
    compared: Compared


def judge(a: SideOfRun, b: SideOfRun, terms: Terms | None = None) -> GateVerdict:
    """Whether B is worse than A.

    Raises:
        NoEvidence: a side has too few valid trials.
        NotComparable: as :func:`~results.comparing.compare_sides`.
    """
    compared = compare_sides(a, b, terms)
    level = compared.primary.level
    for side, name in ((a, compared.a), (b, compared.b)):
        if len(side.at(level)) < LEAST_RUNS:
            raise NoEvidence(f"{name} has {len(side.at(level))} valid trials at {level}, a gate needs {LEAST_RUNS}")
    failures = [_failures(a, b, load.label) for load in a.loads if load.label in compared.answers]
    regressions = [
        *(_worse(compared, one) for one in compared.guardrails if one.judgement is Judgement.WORSE),
        *(_failed_more(compared, one) for one in failures if one.p_value <= compared.terms.alpha),
        *(line for level, sides in compared.answers.items() if (line := _answers_differ(compared, level, *sides))),
    ]
    notes = [*_left_out(a, compared.a), *_left_out(b, compared.b)]
    outcome, sentence = _outcome(compared, fails_beside=bool(regressions))
    return GateVerdict(outcome, sentence, regressions, notes, failures, compared)


def _outcome(compared: Compared, *, fails_beside: bool) -> tuple[Outcome, str]:
    primary = compared.primary
    shown = _shown(compared, primary)
    if primary.judgement is Judgement.WORSE:
        return Outcome.REGRESSION, shown
    if fails_beside:
        return Outcome.REGRESSION, f"not of the primary metric ({shown}), but of what stands beside it"
    if primary.no_worse(CATALOGUE[primary.metric]):
        return Outcome.NO_REGRESSION, shown
    return Outcome.CANNOT_TELL, f"{shown}; {primary.why}"


def _shown(compared: Compared, one: Comparison) -> str:
    metric = CATALOGUE[one.metric]
    ratio, level = ratio_text(one.ratio), f"{100 * (1 - compared.terms.alpha):.3g} % interval"
    return f"{metric.title} at {one.level}: {compared.b} has {ratio} that of {compared.a} ({level})"


def _worse(compared: Compared, one: Comparison) -> str:
    return f"{_shown(compared, one)}; {CATALOGUE[one.metric].better.value} is better"


def _failed_more(compared: Compared, one: Failures) -> str:
    of_a, of_b = (f"{failed} of {whole} requests" for failed, whole in (one.a, one.b))
    return f"failures at {one.level}: {of_b} of {compared.b}, {of_a} of {compared.a}"


def _answers_differ(compared: Compared, level: str, a: QualitySummary | None, b: QualitySummary | None) -> str | None:
    """Nothing where A's differ as well: then it is not B that made it so."""
    if b is None or not b.differs or (a is not None and a.differs):
        return None
    return f"answers at {level}, of {compared.b}: {b.differs}"


def _left_out(side: SideOfRun, name: str) -> list[str]:
    invalid = [t for t in side.run.finished if t.record.engine == side.engine and t.record.verdict is Verdict.INVALID]
    if not invalid:
        return []
    reason = next((reason for trial in invalid for reason in trial.record.reasons), "no reason was stored")
    few, verbs = ("1 trial", ("is", "does")) if len(invalid) == 1 else (f"{len(invalid)} trials", ("are", "do"))
    return [f"{few} of {name} {verbs[0]} INVALID and {verbs[1]} not count: {reason}"]


def _failures(a: SideOfRun, b: SideOfRun, level: str) -> Failures:
    counts: list[tuple[int, int]] = []
    for side in (a, b):
        failed = sum(int(trial.metrics["failures"].value or 0) for trial in side.at(level))
        counts.append((failed, sum(trial.record.planned_requests for trial in side.at(level))))
    return Failures(level, *counts, p_value=_as_many(*counts[0], *counts[1]))


def _as_many(failed_a: int, all_a: int, failed_b: int, all_b: int) -> float:
    """Fisher's exact test, one-sided: of this many failures or more on B's side, if chance alone had placed them."""
    failed = failed_a + failed_b
    whole = _log_choose(all_a + all_b, failed)
    most = min(failed, all_b)
    terms = (
        math.exp(_log_choose(all_b, k) + _log_choose(all_a, failed - k) - whole)
        for k in range(max(failed_b, failed - all_a), most + 1)
    )
    return min(1.0, sum(terms))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
