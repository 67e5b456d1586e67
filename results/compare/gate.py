"""The gate: whether a change may be merged, as one of three outcomes with a reason.

Trials come first: an engine that died, failed requests or fell behind where the baseline did not
(:mod:`bakeoff.results.compare.reliability`), or that did different work (:mod:`bakeoff.results.run.work`), is worse
whatever its times. Then the primary metric decides: it is a regression if the interval excludes 1 in the bad direction,
and no regression if the interval shows that B is worse by less than the change to detect. Anything between is
undecided, since the noise is too high for that change, and reported as such. A guardrail that is worse (Holm) and
answers that differ from the reference fail the gate too. A guardrail whose interval is worse by more than its band,
though no test confirms it, leaves the gate undecided: few repeats may not allow a small enough p.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from bakeoff.results.compare.comparison import EngineComparison, compare_sides
from bakeoff.results.compare.config import START_NOISE, ComparisonConfig
from bakeoff.results.compare.evaluation import compare_evaluations
from bakeoff.results.compare.noise import caveat_text
from bakeoff.results.compare.reliability import FailureMode
from bakeoff.results.compare.sides import AnyTrial, Side
from bakeoff.results.compare.text import band_text, heading, why_text
from bakeoff.results.errors import NoEvidence
from bakeoff.results.metrics import COMPARED
from bakeoff.results.metrics.quality import QualitySummary
from bakeoff.results.records import RunStatus, Verdict
from bakeoff.results.statistics import Comparison, Judgement
from bakeoff.results.statistics.compare import MIN_TRIALS
from bakeoff.results.statistics.comparison import Reason, scale_of
from bakeoff.results.text.findings import main_reason
from bakeoff.results.text.format import STATE_TEXTS, effect_text

MIN_RUNS = 2


class Outcome(StrEnum):
    """Outcome of a gate."""

    NO_REGRESSION = "no regression"
    REGRESSION = "regression"
    CANNOT_TELL = "cannot tell"
    NO_EVIDENCE = "no evidence"
    """Too few trials are valid, and the others do not count against the candidate; or it lacks what is to be judged."""


class RegressionKind(StrEnum):
    """What is worse or undecided, besides the primary metric."""

    NOT_STARTED = "not_started"
    """The engine did not start, or died between trials."""
    DIED = "died"
    """The engine died in trials."""
    FAILED_TRIALS = "failed_trials"
    """Too many requests failed in some trials."""
    SATURATED = "saturated"
    """The engine fell behind its arrivals."""
    SLOWED = "slowed"
    """The engine became slower within the window, and again when the trial was repeated."""
    WORK = "work"
    """The engine did different work than the baseline."""
    ANSWERS = "answers"
    """Answers differ from the reference, and the baseline's do not."""
    METRIC = "metric"
    """A guardrail is worse; as a doubt, it looks worse and no test confirms it, or the candidate alone lacks it."""


_KINDS = {
    FailureMode.NOT_STARTED: RegressionKind.NOT_STARTED,
    FailureMode.DIED: RegressionKind.DIED,
    FailureMode.FAILED: RegressionKind.FAILED_TRIALS,
    FailureMode.SATURATED: RegressionKind.SATURATED,
    FailureMode.SLOWED: RegressionKind.SLOWED,
}


class Regression(msgspec.Struct, frozen=True):
    """A regression or a doubt besides the primary metric.

    Its numbers are in the comparison's ``tallies``, ``work``, ``answers`` and ``comparisons``.

    Attributes:
        kind: what is worse or undecided.
        level: label of the load; None for starts, which belong to no load.
        metric: name in the catalogue; None unless the kind is a metric.
        traffic_class: the class of the traffic; None for all requests.
    """

    kind: RegressionKind
    level: str | None
    metric: str | None = None
    traffic_class: str | None = None


class GateVerdict(msgspec.Struct, frozen=True):
    """Outcome of a gate with its evidence.

    Attributes:
        outcome: the outcome.
        sentence: result of the primary metric, or why it could not be compared.
        regressions: other reasons to fail; metrics come last.
        doubts: other reasons not to pass.
        notes: caveats, such as trials that do not count.
        compared: the comparison.
    """

    outcome: Outcome
    sentence: str
    regressions: list[Regression]
    doubts: list[Regression]
    notes: list[str]
    compared: EngineComparison


class NoVerdict(msgspec.Struct, frozen=True):
    """A gate without evidence.

    Attributes:
        sentence: why there is none, and what to do.
    """

    sentence: str
    outcome: Literal[Outcome.NO_EVIDENCE] = Outcome.NO_EVIDENCE


def judge(a: Side, b: Side, config: ComparisonConfig | None = None) -> GateVerdict:
    """Decide whether B is worse than A.

    Where the trials do not show the noise between starts or runs, the verdict holds under that of the configuration,
    which is :data:`~bakeoff.results.compare.config.START_NOISE` if it states none.

    Raises:
        NoEvidence: a side has too few valid trials, and the INVALID ones are no evidence against B.
        NotComparable: as for :func:`~bakeoff.results.compare.comparison.compare_sides`.
    """
    config = config or ComparisonConfig()
    if config.unseen_sd is None:
        config = msgspec.structs.replace(config, unseen_sd=START_NOISE)
    compared = compare_sides(a, b, config)
    regressions = [
        *_of_trials(compared, Judgement.WORSE),
        *(Regression(RegressionKind.ANSWERS, at) for at, sides in compared.answers.items() if _answers_differ(*sides)),
        *(_of_metric(guard) for guard in compared.guardrails if guard.judgement is Judgement.WORSE),
    ]
    missing = _missing_in_b(a, b, compared)
    lacking = [guard for guard in missing if guard.reason is not Reason.AMONG_FAILURES]
    doubts = [
        *_of_trials(compared, Judgement.UNCLEAR),
        *(_of_metric(guard) for guard in missing if not config.only_common or guard not in lacking),
        *(_of_metric(guard) for guard in compared.guardrails if guard.may_be_worse(COMPARED[guard.metric])),
    ]
    few = _too_few(a, b, compared)
    if few and not regressions and not doubts:
        raise NoEvidence(few)
    notes = [*_left_out(a, compared.a), *_left_out(b, compared.b), *_incomplete(a), *_incomplete(b)]
    lacks = _lacks_text(compared, lacking)
    if lacks and config.only_common:
        notes.append(f"{lacks}: that is not judged")
    absent = effect_clause(compared, compared.primary) if compared.primary.reason is Reason.ABSENT else None
    if absent and not regressions:
        outcome, sentence = Outcome.NO_EVIDENCE, absent
    elif lacks and not regressions and not config.only_common:
        outcome, sentence = Outcome.NO_EVIDENCE, f"{lacks}; measure it, or judge the rest by --only-common"
    else:
        why = few or absent
        outcome, sentence = _outcome(compared, why, has_regressions=bool(regressions), has_doubts=bool(doubts))
    return GateVerdict(outcome, sentence, regressions, doubts, notes, compared)


def _lacks_text(compared: EngineComparison, lacking: Sequence[Comparison]) -> str | None:
    """What the candidate lacks and the baseline has; None for nothing that would have been judged."""
    levels, addresses = (
        [name for name, side in missing.items() if side == "B"]
        for missing in (compared.absent, compared.absent_addresses)
    )
    metrics: dict[str, list[str]] = {}
    for guard in lacking:
        metrics.setdefault(heading(guard), []).append(COMPARED[guard.metric].title)
    parts = [
        *([f"was not measured at {' and '.join(levels)}"] if levels else []),
        *([f"lacks address {' and '.join(addresses)}"] if addresses else []),
        *(f"lacks {', '.join(titles)} at {at}" for at, titles in metrics.items()),
    ]
    return f"{compared.b} {' and '.join(parts)}" if parts else None


def judge_evaluations(a: Path, b: Path, config: ComparisonConfig) -> GateVerdict:
    """Decide whether the perplexity of B is worse than that of A; errors as of `compare_evaluations`.

    Args:
        a: file of the baseline's evaluation.
        b: file of the candidate's.
        config: from :func:`~bakeoff.results.compare.evaluation.perplexity_config`.
    """
    compared = compare_evaluations(a, b, config)
    outcome, sentence = _outcome(compared, None, has_regressions=False, has_doubts=False)
    return GateVerdict(outcome, sentence, [], [], [], compared)


def _too_few(a: Side, b: Side, compared: EngineComparison) -> str | None:
    level = compared.primary.level
    for side, name in ((a, compared.a), (b, compared.b)):
        if len(side.at(level)) < MIN_RUNS:
            trials = f"{len(side.at(level))} valid trial" + "s" * (len(side.at(level)) != 1)
            why = main_reason(trial.record for trial in side.trials if trial.record.load.label == level)
            because = f" ({why})" if why else ""
            return f"{name} has {trials} at {level}{because}, a gate needs {MIN_TRIALS}; repeat the run"
    return None


def _outcome(
    compared: EngineComparison, few: str | None, *, has_regressions: bool, has_doubts: bool
) -> tuple[Outcome, str]:
    primary = compared.primary
    effect = few or effect_clause(compared, primary)
    if primary.judgement is Judgement.WORSE:
        return Outcome.REGRESSION, f"{effect}{_caveat(primary)}"
    if has_regressions and few:
        return Outcome.REGRESSION, f"as listed below; the primary metric has no evidence: {few}"
    if has_regressions:
        return Outcome.REGRESSION, f"no regression in the primary metric ({effect}); other regressions are listed below"
    if has_doubts:
        return Outcome.CANNOT_TELL, f"not because of the primary metric ({effect}), but as listed below"
    if primary.no_worse(COMPARED[primary.metric]):
        return Outcome.NO_REGRESSION, f"{effect}{_ruled_out(primary)}{_caveat(primary, passes=True)}"
    names_reason = few is None and not _has_interval(primary)
    why = effect if names_reason else f"{effect}; {why_text(compared, primary)}"
    return Outcome.CANNOT_TELL, f"{why}{_caveat(primary)}"


def _caveat(primary: Comparison, *, passes: bool = False) -> str:
    caveat = caveat_text(primary, passes=passes)
    return f"; {caveat}" if caveat else ""


def _ruled_out(primary: Comparison) -> str:
    """``; 10 % worse is ruled out``; empty where the table's judgement says as much."""
    evidence = primary.evidence
    if evidence is None or evidence.sought <= evidence.band:
        return ""
    return f"; {band_text(evidence.sought, scale_of(COMPARED[primary.metric]))} worse is ruled out"


def effect_clause(compared: EngineComparison, comparison: Comparison) -> str:
    """``TTFT p50 at c=8: branch has 1.20× [1.18, 1.22] that of main (99 % interval)``."""
    metric, level = COMPARED[comparison.metric], f"{100 * (1 - compared.config.alpha):.3g} % interval"
    if not _has_interval(comparison):
        return f"{metric.title} at {heading(comparison)}: {why_text(compared, comparison)}"
    relation = "that of" if comparison.ratio else "relative to"
    effect = f"{effect_text(comparison)} {relation} {compared.a}"
    return f"{metric.title} at {heading(comparison)}: {compared.b} has {effect} ({level})"


def _has_interval(comparison: Comparison) -> bool:
    effect = comparison.ratio or comparison.difference
    return effect is not None and effect.low is not None


def _of_metric(comparison: Comparison) -> Regression:
    return Regression(RegressionKind.METRIC, comparison.level, comparison.metric, comparison.traffic_class)


def _of_trials(compared: EngineComparison, judgement: Judgement) -> list[Regression]:
    """Failure modes and work with this judgement."""
    return [
        *(
            Regression(_KINDS[tally.failure_mode], tally.level)
            for tally in compared.tallies
            if tally.judgement is judgement
        ),
        *(
            Regression(RegressionKind.WORK, work.level, traffic_class=work.traffic_class)
            for work in compared.works
            if work.judgement is judgement
        ),
    ]


def _missing_in_b(a: Side, b: Side, compared: EngineComparison) -> list[Comparison]:
    """Guardrails that only B's trials lack: a metric that cannot be checked does not pass."""
    missing: list[Comparison] = []
    for guard in compared.guardrails:
        if guard.evidence is not None or guard.judgement is not Judgement.UNCLEAR:
            continue
        if guard.traffic_class is not None:
            if guard.reason is Reason.ABSENT and _is_unseen(guard, a.at(guard.level)):
                missing.append(guard)
            continue
        in_a, in_b = (
            [trial.metrics[guard.metric].value is not None for trial in side.at(guard.level)] for side in (a, b)
        )
        has_too_few = len(in_b) < MIN_RUNS <= len(in_a) and guard.level != compared.primary.level
        if in_a and all(in_a) and (has_too_few or not all(in_b)):
            missing.append(guard)
    return missing


def _is_unseen(guard: Comparison, of_a: Sequence[AnyTrial]) -> bool:
    """Whether a metric of a class is absent from B alone, or from A because its file holds no requests."""
    return bool(of_a) and (guard.parameters["side"] == "B" or not any(len(trial.requests) for trial in of_a))


def _answers_differ(a: QualitySummary | None, b: QualitySummary | None) -> bool:
    """Whether B's answers differ and A's do not; if both do, B is not the cause."""
    return b is not None and b.differs and (a is None or not a.differs)


def _incomplete(side: Side) -> list[str]:
    states = ((run.path, run.manifest.status) for run in side.runs)
    return [
        f"{path} {STATE_TEXTS[state]}: trials are missing" for path, state in states if state is not RunStatus.COMPLETE
    ]


def _left_out(side: Side, name: str) -> list[str]:
    invalid = [trial for trial in side.trials if trial.record.verdict is Verdict.INVALID]
    if not invalid:
        return []
    reason = main_reason(trial.record for trial in invalid)
    trials = f"1 trial of {name} is" if len(invalid) == 1 else f"{len(invalid)} trials of {name} are"
    return [f"{trials} INVALID and excluded from every metric: {reason}"]
