"""Evidence from INVALID trials: how often each engine died, failed requests or fell behind its arrivals.

INVALID trials have no figures to compare, yet a regression large enough to invalidate trials must not pass more easily
than a small one. So they are counted, per load level and kind of failure, among all trials that ended. B is worse if

- :func:`~bakeoff.results.statistics.counts.boschloo`'s test of trials says so, corrected over all kinds and loads
(Holm), or
- B never started, or failed most requests in all of its trials of a load, at least two, or was saturated in all, at
  least three; and A never failed: so few trials are too few for the test. A share of failed requests near the
  experiment's limit may exceed it by chance; or
- B died, restarted or did not start, however seldom, and A never did: an engine that runs does not die by chance.

A larger share of failures that is not significant is unclear. Trials that are INVALID because of the client, the
machine or the experiment are no evidence about the engine.
"""

from collections.abc import Iterable, Sequence, Set
from enum import StrEnum

import msgspec

from bakeoff.results.finding_codes import Cause, FindingCode
from bakeoff.results.log.run_log import EngineFailure
from bakeoff.results.records import TrialRecord, Verdict
from bakeoff.results.statistics.comparison import Judgement
from bakeoff.results.statistics.counts import Count, boschloo, trials_needed
from bakeoff.results.statistics.multiplicity import holm

_MOST = 0.5
"""Share of failed requests that no engine has by chance, whatever limit the experiment sets."""
_MIN_TRIALS, _MIN_SATURATED = 2, 3
"""In n trials each, B alone fails all by chance in up to 4^-n of all comparisons: 1.6 % of three."""


class FailureMode(StrEnum):
    """How an engine failed a trial, most severe first."""

    NOT_STARTED = "not_started"
    """Did not start, or died between trials."""
    DIED = "died"
    FAILED = "failed"
    """Too many requests failed."""
    SATURATED = "saturated"
    """Fell behind its arrivals."""
    SLOWED = "slowed"
    """Became slower within the window, and again when the trial was repeated."""


_CRASHES = frozenset({FailureMode.NOT_STARTED, FailureMode.DIED})
_KINDS = {
    FindingCode.ENGINE_DIED: FailureMode.DIED,
    FindingCode.ENGINE_RESTARTED: FailureMode.DIED,
    FindingCode.SATURATED: FailureMode.SATURATED,
    FindingCode.BECAME_SLOWER: FailureMode.SLOWED,
}
"""Any other invalidating finding caused by the engine counts as failed requests."""


class Tally(msgspec.Struct, frozen=True):
    """How often each side failed in one way.

    Attributes:
        level: label of the load; None for starts, which belong to no load.
        failure_mode: the kind of failure.
        a: A's failures and trials; for starts, failed starts, and trials plus failed starts.
        b: likewise.
        judgement: ``worse``, ``unclear``, or ``same`` if B failed no more often.
        p_value: of Boschloo's test, corrected over all tallies; None where it does not decide.
        trials_needed: about how many trials of each side would decide; None if it is decided, or they are too
            many.
    """

    level: str | None
    failure_mode: FailureMode
    a: Count
    b: Count
    judgement: Judgement
    p_value: float | None = None
    trials_needed: int | None = None


def failure_mode_of(record: TrialRecord) -> FailureMode | None:
    """How the engine failed a trial; None if the trial is VALID, or INVALID for another cause."""
    if record.verdict is Verdict.VALID:
        return None
    codes = [finding.code for finding in record.invalidating if finding.code.cause is Cause.ENGINE]
    if record.replaces is None:  # the machine may have slowed it down, and the trial is measured again
        codes = [code for code in codes if code is not FindingCode.BECAME_SLOWER]
    kinds = {_KINDS.get(code, FailureMode.FAILED) for code in codes}
    return next((failure_mode for failure_mode in FailureMode if failure_mode in kinds), None)


def _failed_all(trials: Sequence[TrialRecord]) -> bool:
    """Whether the engine failed all trials of a load beyond chance."""
    modes = {failure_mode_of(record) for record in trials}
    least = _MIN_SATURATED if modes & {FailureMode.SATURATED, FailureMode.SLOWED} else _MIN_TRIALS
    return len(trials) >= least and None not in modes and not any(map(_is_near_limit, trials))


def _is_near_limit(record: TrialRecord) -> bool:
    """Whether only some requests failed."""
    counts = [
        (float(failed), float(finding.parameters["measured_requests"]))
        for finding in record.invalidating
        if (failed := finding.parameters.get("failed_requests")) is not None
    ]
    return failure_mode_of(record) is FailureMode.FAILED and any(failed < _MOST * of for failed, of in counts)


def tallies(
    a: Sequence[TrialRecord],
    b: Sequence[TrialRecord],
    levels: Iterable[str],
    *,
    alpha: float,
    failures_a: Sequence[EngineFailure] = (),
    failures_b: Sequence[EngineFailure] = (),
) -> list[Tally]:
    """Count the failures of both sides, and judge the counts.

    Args:
        a: records of the baseline's finished trials.
        b: records of the candidate's.
        levels: labels of the loads to count.
        alpha: significance level of the comparison.
        failures_a: failed starts of the baseline; those within a trial are also in its record.
        failures_b: failed starts of the candidate.
    """
    starts_a, starts_b = _starts(a, failures_a), _starts(b, failures_b)
    counted: list[tuple[str | None, FailureMode, Count, Count]] = []
    if starts_a[0] or starts_b[0]:
        counted.append((None, FailureMode.NOT_STARTED, starts_a, starts_b))
    has_a_failed = bool(starts_a[0]) or any(map(failure_mode_of, a))
    all_failed: set[str | None] = set() if b else {None}
    for level in levels:
        modes_a, modes_b = (
            [failure_mode_of(record) for record in side if record.load.label == level] for side in (a, b)
        )
        if _failed_all([record for record in b if record.load.label == level]):
            all_failed.add(level)
        counted += [
            (level, mode, (modes_a.count(mode), len(modes_a)), (modes_b.count(mode), len(modes_b)))
            for mode in FailureMode
            if mode in {*modes_a, *modes_b}
        ]
    certain = all_failed if a and not has_a_failed else set[str | None]()
    has_a_crashed = bool(starts_a[0]) or any(failure_mode_of(record) in _CRASHES for record in a)
    crashes = _CRASHES if a and not has_a_crashed else frozenset[FailureMode]()
    return _judged(counted, certain, crashes, alpha)


def _starts(records: Sequence[TrialRecord], failures: Sequence[EngineFailure]) -> Count:
    in_trials = sum(failure_mode_of(record) is FailureMode.DIED for record in records)
    failed = max(0, len(failures) - in_trials)
    return failed, len(records) + failed


def _judged(
    counted: Sequence[tuple[str | None, FailureMode, Count, Count]],
    certain: set[str | None],
    crashes: Set[FailureMode],
    alpha: float,
) -> list[Tally]:
    adjusted = holm({str(position): boschloo(a, b) for position, (_, _, a, b) in enumerate(counted)})
    judged: list[Tally] = []
    for position, (level, mode, a, b) in enumerate(counted):
        p_value = adjusted[str(position)]
        if not b[0] or (a[1] and b[0] * a[1] <= a[0] * b[1]):
            judged.append(Tally(level, mode, a, b, Judgement.SAME))
        elif p_value <= alpha:
            judged.append(Tally(level, mode, a, b, Judgement.WORSE, p_value))
        elif level in certain or mode in crashes:
            judged.append(Tally(level, mode, a, b, Judgement.WORSE))
        else:
            judged.append(Tally(level, mode, a, b, Judgement.UNCLEAR, p_value, trials_needed(a, b, alpha)))
    return judged
