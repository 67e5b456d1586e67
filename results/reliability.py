"""What INVALID trials say of an engine: that it died, failed requests or fell behind its arrivals.

Such trials have no figures to compare, and a regression that is large enough to void them must not be safer than a
small one. So they are counted, of all trials that ended at one load:

- **died**, restarted, or not started: worse where B did and A did not; both: as for failures.
- **failed requests**, more than a trial may have: two trials more than A are worse, one more is unclear.
- **saturated**: worse by Fisher's exact test (1935) of trials, held for all loads at once (Holm); unclear where B has
  more and the test does not tell.

Where the sides have unequally many trials, A's count is scaled to B's. Trials that are INVALID because of the client,
the machine or the experiment say nothing of the engine.
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


class Offence(StrEnum):
    """What an engine did, most damning first."""

    NOT_STARTED = "not_started"
    """It did not start, or died between trials."""
    DIED = "died"
    FAILED = "failed"
    """Too many of its requests failed."""
    SATURATED = "saturated"
    """It fell behind its arrivals."""


_KINDS = {
    FindingCode.ENGINE_DIED: Offence.DIED,
    FindingCode.ENGINE_RESTARTED: Offence.DIED,
    FindingCode.SATURATED: Offence.SATURATED,
}
"""Every other finding that voids a trial and that the engine caused is one of failed requests."""


class Tally(msgspec.Struct, frozen=True):
    """How often both sides did a thing.

    Attributes:
        level: label of the load; None of starts, which belong to no load.
        offence: what was done.
        a: how often by A, and of how many trials.
        b: the same of B.
        judgement: ``worse``, ``unclear``, or ``same`` where B did it no more often.
        p_value: of Fisher's test, where that decides.
    """

    level: str | None
    offence: Offence
    a: tuple[int, int]
    b: tuple[int, int]
    judgement: Judgement
    p_value: float | None = None


def offence_of(record: TrialRecord) -> Offence | None:
    """What the engine did to void a trial; None where it is VALID, or void for another's fault."""
    if record.verdict is Verdict.VALID:
        return None
    codes = [found.code for found in record.invalidating if found.code.cause is Cause.ENGINE]
    kinds = {_KINDS.get(code, Offence.FAILED) for code in codes}
    return next((offence for offence in Offence if offence in kinds), None)


def tallies(
    a: Sequence[TrialRecord],
    b: Sequence[TrialRecord],
    levels: Iterable[str],
    *,
    alpha: float,
    failures_a: Sequence[EngineFailure] = (),
    failures_b: Sequence[EngineFailure] = (),
) -> list[Tally]:
    """Everything that either side did.

    Args:
        a: records of the baseline's finished trials.
        b: of the candidate's.
        levels: labels of the loads that are looked at.
        alpha: level of Fisher's test.
        failures_a: starts of the baseline that failed; those inside a trial are told by the trial.
        failures_b: of the candidate.
    """
    found = [_starts(a, b, failures_a, failures_b)]
    for level in levels:
        of_a, of_b = ([record for record in side if record.load.label == level] for side in (a, b))
        found += [_tally(level, offence, of_a, of_b) for offence in Offence if offence is not Offence.NOT_STARTED]
    return _by_fisher([tally for tally in found if tally.a[0] or tally.b[0]], alpha)


def _starts(
    a: Sequence[TrialRecord],
    b: Sequence[TrialRecord],
    failures_a: Sequence[EngineFailure],
    failures_b: Sequence[EngineFailure],
) -> Tally:
    counts: list[tuple[int, int]] = []
    for records, failures in ((a, failures_a), (b, failures_b)):
        in_trials = sum(offence_of(record) is Offence.DIED for record in records)
        counts.append((max(0, len(failures) - in_trials), max(len(records), len(failures))))
    return Tally(None, Offence.NOT_STARTED, *counts, judgement=_more(*counts, is_death=True))


def _tally(level: str, offence: Offence, a: Sequence[TrialRecord], b: Sequence[TrialRecord]) -> Tally:
    counts = [(sum(offence_of(record) is offence for record in side), len(side)) for side in (a, b)]
    return Tally(level, offence, *counts, judgement=_more(*counts, is_death=offence is Offence.DIED))


def _more(a: tuple[int, int], b: tuple[int, int], *, is_death: bool) -> Judgement:
    more = b[0] - (a[0] * b[1] / a[1] if a[1] else 0.0)
    if (is_death and b[0] and not a[0]) or more >= _MANY_MORE:
        return Judgement.WORSE
    return Judgement.UNCLEAR if more >= _ONE_MORE else Judgement.SAME


def _by_fisher(found: Sequence[Tally], alpha: float) -> list[Tally]:
    """The same, with loads saturated judged by Fisher's test."""
    p_values = {tally.level or "": fisher(tally.a, tally.b) for tally in found if tally.offence is Offence.SATURATED}
    adjusted = holm(p_values)
    judged: list[Tally] = []
    for tally in found:
        if tally.offence is not Offence.SATURATED:
            judged.append(tally)
            continue
        p_value = adjusted[tally.level or ""]
        word = tally.judgement
        if word is not Judgement.SAME:
            word = Judgement.WORSE if p_value <= alpha else Judgement.UNCLEAR
        judged.append(msgspec.structs.replace(tally, judgement=word, p_value=p_value))
    return judged


def fisher(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Fisher's exact test, one-sided: of so many or more on B's side if chance alone had placed them.

    Args:
        a: how many of how many trials of A.
        b: of B.
    """
    (hit_a, all_a), (hit_b, all_b) = a, b
    hits = hit_a + hit_b
    ways = sum(math.comb(all_b, k) * math.comb(all_a, hits - k) for k in range(hit_b, min(hits, all_b) + 1))
    return ways / math.comb(all_a + all_b, hits)
