"""May this change be merged? One of three outcomes of a comparison, and the sentence that says why.

What the trials themselves were comes first: an engine that died, failed requests or fell behind where the baseline's
did not (:mod:`results.reliability`), or that did other work (:mod:`results.work`), is worse whatever the times of the
rest are. Then the primary metric decides: a regression is an interval that leaves 1 out on the bad
side; no regression one that shows that B is worse by no more than the band. Everything between is neither, and is said
to be so. A guardrail that is worse (Holm) and answers that differ from the reference's fail the gate too.
"""

from enum import StrEnum

import msgspec

from results.comparing import Compared, compare_sides
from results.errors import NoEvidence
from results.metrics import CATALOGUE
from results.quality import QualitySummary
from results.records import Verdict
from results.reliability import Offence
from results.sides import SideOfRun
from results.statistics import Comparison, Judgement
from results.terms import Terms
from results.text.findings import sentence
from results.text.format import effect_text

LEAST_RUNS = 2


class Outcome(StrEnum):
    """What the gate says."""

    NO_REGRESSION = "no regression"
    REGRESSION = "regression"
    CANNOT_TELL = "cannot tell"


class RegressionKind(StrEnum):
    """What is worse or in doubt, beside the primary metric."""

    NOT_STARTED = "not_started"
    """The engine did not start, or died between trials."""
    DIED = "died"
    """It died in trials."""
    FAILED_TRIALS = "failed_trials"
    """Trials of it failed too many requests."""
    SATURATED = "saturated"
    """It fell behind its arrivals."""
    WORK = "work"
    """It did other work than the baseline."""
    ANSWERS = "answers"
    """Answers differ from the reference's, and the baseline's do not."""
    METRIC = "metric"
    """A guardrail: worse, or, of a doubt, absent on the candidate's side alone."""


_KINDS = {
    Offence.NOT_STARTED: RegressionKind.NOT_STARTED,
    Offence.DIED: RegressionKind.DIED,
    Offence.FAILED: RegressionKind.FAILED_TRIALS,
    Offence.SATURATED: RegressionKind.SATURATED,
}


class Regression(msgspec.Struct, frozen=True):
    """One thing that fails the gate, or keeps it from passing, beside the primary metric.

    Its numbers stand in the comparison: in ``tallies``, ``work``, ``answers`` and ``comparisons``.

    Attributes:
        kind: which.
        level: label of the load; None of starts, which belong to no load.
        metric: name in the catalogue; None where it is none.
    """

    kind: RegressionKind
    level: str | None
    metric: str | None = None


class GateVerdict(msgspec.Struct, frozen=True):
    """The outcome and what it rests on.

    Attributes:
        outcome: the word.
        sentence: of the primary metric, or of what kept it from being compared.
        regressions: what failed the gate beside it; those of no metric first.
        doubts: what kept it from passing.
        notes: what a reader must know: trials that did not count.
        compared: all comparisons.
    """

    outcome: Outcome
    sentence: str
    regressions: list[Regression]
    doubts: list[Regression]
    notes: list[str]
    compared: Compared


def judge(a: SideOfRun, b: SideOfRun, terms: Terms | None = None) -> GateVerdict:
    """Whether B is worse than A.

    Raises:
        NoEvidence: a side has too few valid trials, and those that are not valid say nothing against B.
        NotComparable: as :func:`~results.comparing.compare_sides`.
    """
    compared = compare_sides(a, b, terms)
    regressions = [
        *_of_trials(compared, Judgement.WORSE),
        *(Regression(RegressionKind.ANSWERS, at) for at, sides in compared.answers.items() if _answers_differ(*sides)),
        *(_of_metric(guard) for guard in compared.guardrails if guard.judgement is Judgement.WORSE),
    ]
    doubts = [*_of_trials(compared, Judgement.UNCLEAR), *_unseen(a, b, compared)]
    few = _too_few(a, b, compared)
    if few and not regressions and not doubts:
        raise NoEvidence(few)
    outcome, sentence = _outcome(compared, few, fails_beside=bool(regressions), is_in_doubt=bool(doubts))
    notes = [*_left_out(a, compared.a), *_left_out(b, compared.b)]
    return GateVerdict(outcome, sentence, regressions, doubts, notes, compared)


def _too_few(a: SideOfRun, b: SideOfRun, compared: Compared) -> str | None:
    level = compared.primary.level
    for side, name in ((a, compared.a), (b, compared.b)):
        if len(side.at(level)) < LEAST_RUNS:
            return f"{name} has {len(side.at(level))} valid trials at {level}, a gate needs {LEAST_RUNS}"
    return None


def _outcome(compared: Compared, few: str | None, *, fails_beside: bool, is_in_doubt: bool) -> tuple[Outcome, str]:
    primary = compared.primary
    shown = few or effect_clause(compared, primary)
    if primary.judgement is Judgement.WORSE:
        return Outcome.REGRESSION, shown
    if fails_beside:
        return Outcome.REGRESSION, f"not of the primary metric ({shown}), but of what stands beside it"
    if is_in_doubt:
        return Outcome.CANNOT_TELL, f"not for the primary metric ({shown}), but for what stands beside it"
    if primary.no_worse(CATALOGUE[primary.metric]):
        return Outcome.NO_REGRESSION, shown
    return Outcome.CANNOT_TELL, shown if primary.why in shown else f"{shown}; {primary.why}"


def effect_clause(compared: Compared, comparison: Comparison) -> str:
    """``TTFT p50 at c=8: branch has 1.20× [1.18, 1.22] that of main (99 % interval)``."""
    metric, level = CATALOGUE[comparison.metric], f"{100 * (1 - compared.terms.alpha):.3g} % interval"
    effect = comparison.ratio or comparison.difference
    if effect is None or effect.low is None:
        return f"{metric.title} at {comparison.level}: {comparison.why}"
    relation = "that of" if comparison.ratio else "beside"
    shown = f"{effect_text(comparison)} {relation} {compared.a}"
    return f"{metric.title} at {comparison.level}: {compared.b} has {shown} ({level})"


def _of_metric(comparison: Comparison) -> Regression:
    return Regression(RegressionKind.METRIC, comparison.level, comparison.metric)


def _of_trials(compared: Compared, word: Judgement) -> list[Regression]:
    """What trials and their work say, where that is the word for it."""
    return [
        *(Regression(_KINDS[tally.offence], tally.level) for tally in compared.tallies if tally.judgement is word),
        *(Regression(RegressionKind.WORK, work.level) for work in compared.work.values() if work.judgement is word),
    ]


def _unseen(a: SideOfRun, b: SideOfRun, compared: Compared) -> list[Regression]:
    """Guardrails that B's trials alone lack: a metric that was asked for and cannot be looked at is no pass."""
    doubts: list[Regression] = []
    for guard in compared.guardrails:
        if guard.evidence is not None or guard.judgement is not Judgement.UNCLEAR:
            continue
        in_a, in_b = (
            [trial.metrics[guard.metric].value is not None for trial in side.at(guard.level)] for side in (a, b)
        )
        if in_a and all(in_a) and in_b and not all(in_b):
            doubts.append(_of_metric(guard))
    return doubts


def _answers_differ(a: QualitySummary | None, b: QualitySummary | None) -> bool:
    """Not where A's differ as well: then it is not B that made it so."""
    return b is not None and b.differs is not None and (a is None or a.differs is None)


def _left_out(side: SideOfRun, name: str) -> list[str]:
    invalid = [trial for trial in side.trials if trial.record.verdict is Verdict.INVALID]
    if not invalid:
        return []
    reason = next(sentence(finding) for trial in invalid for finding in trial.record.invalidating)
    few, verb = ("1 trial", "is") if len(invalid) == 1 else (f"{len(invalid)} trials", "are")
    return [f"{few} of {name} {verb} INVALID, and no metric counts {'it' if verb == 'is' else 'them'}: {reason}"]
