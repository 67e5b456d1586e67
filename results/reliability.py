"""Evidence from INVALID trials: how often each engine died, failed requests or fell behind its arrivals.

INVALID trials have no figures to compare, yet a regression large enough to invalidate trials must not pass more easily
than a small one. So they are counted, per load level, among all trials that ended:

- **died**, restarted or not started: worse if B did and A did not; if both did, counted like failed requests.
- **failed requests** above a trial's limit: two more trials than A are worse, one more is unclear.
- **saturated**: worse by Fisher's exact test (1935) over trials, corrected over all loads (Holm); unclear if B has more
  and the test is not significant.

If the sides have different numbers of trials, A's count is scaled to B's. Trials that are INVALID because of the
client, the machine or the experiment are no evidence about the engine.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from results.findings import Cause, FindingCode
from results.records import TrialRecord, Verdict
from results.run_log import EngineFailure
from results.statistics.comparison import Judgement
from results.statistics.multiplicity import holm

_MANY_MORE, _ONE_MORE = 2.0, 1e-9


class FailureMode(StrEnum):
    """How an engine failed a trial, most severe first."""

    NOT_STARTED = "not_started"
    """Did not start, or died between trials."""
    DIED = "died"
    FAILED = "failed"
    """Too many requests failed."""
    SATURATED = "saturated"
    """Fell behind its arrivals."""


_KINDS = {
    FindingCode.ENGINE_DIED: FailureMode.DIED,
    FindingCode.ENGINE_RESTARTED: FailureMode.DIED,
    FindingCode.SATURATED: FailureMode.SATURATED,
}
"""Any other invalidating finding caused by the engine counts as failed requests."""


class Tally(msgspec.Struct, frozen=True):
    """How often each side failed in one way.

    Attributes:
        level: label of the load; None for starts, which belong to no load.
        failure_mode: the kind of failure.
        a: A's failures and trials.
        b: B's failures and trials.
        judgement: ``worse``, ``unclear``, or ``same`` if B failed no more often.
        p_value: of Fisher's test, where it decides.
    """

    level: str | None
    failure_mode: FailureMode
    a: tuple[int, int]
    b: tuple[int, int]
    judgement: Judgement
    p_value: float | None = None


def failure_mode_of(record: TrialRecord) -> FailureMode | None:
    """How the engine failed a trial; None if the trial is VALID, or INVALID for another cause."""
    if record.verdict is Verdict.VALID:
        return None
    codes = [finding.code for finding in record.invalidating if finding.code.cause is Cause.ENGINE]
    kinds = {_KINDS.get(code, FailureMode.FAILED) for code in codes}
    return next((failure_mode for failure_mode in FailureMode if failure_mode in kinds), None)


def tallies(
    a: Sequence[TrialRecord],
    b: Sequence[TrialRecord],
    levels: Iterable[str],
    *,
    alpha: float,
    failures_a: Sequence[EngineFailure] = (),
    failures_b: Sequence[EngineFailure] = (),
) -> list[Tally]:
    """Count the failures of both sides.

    Args:
        a: records of the baseline's finished trials.
        b: records of the candidate's.
        levels: labels of the loads to count.
        alpha: significance level of Fisher's test.
        failures_a: failed starts of the baseline; those within a trial are also in its record.
        failures_b: failed starts of the candidate.
    """
    counted = [_starts(a, b, failures_a, failures_b)]
    for level in levels:
        of_a, of_b = ([record for record in side if record.load.label == level] for side in (a, b))
        counted += [
            _tally(level, failure_mode, of_a, of_b)
            for failure_mode in FailureMode
            if failure_mode is not FailureMode.NOT_STARTED
        ]
    return _by_fisher([tally for tally in counted if tally.a[0] or tally.b[0]], alpha)


def _starts(
    a: Sequence[TrialRecord],
    b: Sequence[TrialRecord],
    failures_a: Sequence[EngineFailure],
    failures_b: Sequence[EngineFailure],
) -> Tally:
    counts: list[tuple[int, int]] = []
    for records, failures in ((a, failures_a), (b, failures_b)):
        in_trials = sum(failure_mode_of(record) is FailureMode.DIED for record in records)
        counts.append((max(0, len(failures) - in_trials), max(len(records), len(failures))))
    return Tally(None, FailureMode.NOT_STARTED, *counts, judgement=_more(*counts, is_death=True))


def _tally(level: str, failure_mode: FailureMode, a: Sequence[TrialRecord], b: Sequence[TrialRecord]) -> Tally:
    counts = [(sum(failure_mode_of(record) is failure_mode for record in side), len(side)) for side in (a, b)]
    return Tally(level, failure_mode, *counts, judgement=_more(*counts, is_death=failure_mode is FailureMode.DIED))


def _more(a: tuple[int, int], b: tuple[int, int], *, is_death: bool) -> Judgement:
    more = b[0] - (a[0] * b[1] / a[1] if a[1] else 0.0)
    if (is_death and b[0] and not a[0]) or more >= _MANY_MORE:
        return Judgement.WORSE
    return Judgement.UNCLEAR if more >= _ONE_MORE else Judgement.SAME


def _by_fisher(counted: Sequence[Tally], alpha: float) -> list[Tally]:
    """The tallies, with saturation judged by Fisher's test."""
    p_values = {
        tally.level or "": fisher(tally.a, tally.b) for tally in counted if tally.failure_mode is FailureMode.SATURATED
    }
    adjusted = holm(p_values)
    judged: list[Tally] = []
    for tally in counted:
        if tally.failure_mode is not FailureMode.SATURATED:
            judged.append(tally)
            continue
        p_value = adjusted[tally.level or ""]
        judgement = tally.judgement
        if judgement is not Judgement.SAME:
            judgement = Judgement.WORSE if p_value <= alpha else Judgement.UNCLEAR
        judged.append(msgspec.structs.replace(tally, judgement=judgement, p_value=p_value))
    return judged


def fisher(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Fisher's exact test, one-sided: probability of at least B's count if failures fell on trials at random.

    Args:
        a: A's failures and trials.
        b: B's failures and trials.
    """
    (hit_a, all_a), (hit_b, all_b) = a, b
    hits = hit_a + hit_b
    ways = sum(math.comb(all_b, k) * math.comb(all_a, hits - k) for k in range(hit_b, min(hits, all_b) + 1))
    return ways / math.comb(all_a + all_b, hits)
