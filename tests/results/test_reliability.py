"""INVALID trials as evidence against an engine, counted by trial."""

import msgspec
import pytest

from results.findings import Finding, FindingCode, invalid, warning
from results.records import Load, TrialRecord, Verdict
from results.reliability import FailureMode, Tally, failure_mode_of, fisher, tallies
from results.report.tallies import tally_text
from results.run_log import EngineFailure, EngineFate
from results.statistics import Judgement
from tests.results.handmade import trial

LOAD = Load(concurrency=8)
DIED, RESTARTED = invalid(FindingCode.ENGINE_DIED), invalid(FindingCode.ENGINE_RESTARTED)
FAILED, SATURATED = invalid(FindingCode.FAILED_REQUESTS), invalid(FindingCode.SATURATED)
LATE = invalid(FindingCode.CLIENT_LATE)


def record(*findings: Finding) -> TrialRecord:
    void = any(finding.severity.value == "invalid" for finding in findings)
    verdict = Verdict.INVALID if void else Verdict.VALID
    return msgspec.structs.replace(trial(LOAD), verdict=verdict, findings=list(findings))


def side(count: int, *findings: Finding, of: int = 8) -> list[TrialRecord]:
    """``count`` trials with these findings, filled up to ``of`` with valid ones."""
    return [record(*findings) for _ in range(count)] + [record() for _ in range(of - count)]


@pytest.mark.parametrize(
    ("findings", "failure_mode"),
    [
        ((), None),
        ((DIED, FAILED), FailureMode.DIED),
        ((RESTARTED,), FailureMode.DIED),
        ((LATE, FAILED), FailureMode.FAILED),
        ((SATURATED,), FailureMode.SATURATED),
        ((LATE,), None),
        ((invalid(FindingCode.NOT_STEADY),), None),
        ((warning(FindingCode.OUTPUT_LENGTH), LATE), None),
    ],
)
def test_the_most_damning_finding_of_the_engine_counts(
    findings: tuple[Finding, ...], failure_mode: FailureMode | None
) -> None:
    assert failure_mode_of(record(*findings)) is failure_mode


@pytest.mark.parametrize(
    ("finding", "a", "b", "word"),
    [
        (DIED, (0, 8), (1, 8), Judgement.WORSE),
        (DIED, (1, 8), (1, 8), Judgement.SAME),
        (DIED, (1, 8), (2, 8), Judgement.UNCLEAR),
        (DIED, (1, 8), (3, 8), Judgement.WORSE),
        (DIED, (3, 8), (0, 8), Judgement.SAME),
        (FAILED, (0, 8), (1, 8), Judgement.UNCLEAR),
        (FAILED, (0, 8), (2, 8), Judgement.WORSE),
        (FAILED, (1, 8), (2, 8), Judgement.UNCLEAR),
        (FAILED, (2, 24), (1, 8), Judgement.UNCLEAR),
        (FAILED, (3, 24), (1, 8), Judgement.SAME),
        (FAILED, (0, 0), (2, 8), Judgement.WORSE),
        (SATURATED, (0, 8), (3, 8), Judgement.UNCLEAR),
        (SATURATED, (0, 8), (6, 8), Judgement.WORSE),
        (SATURATED, (6, 8), (6, 8), Judgement.SAME),
    ],
)
def test_how_many_more_are_worse(finding: Finding, a: tuple[int, int], b: tuple[int, int], word: Judgement) -> None:
    rows = tallies(side(a[0], finding, of=a[1]), side(b[0], finding, of=b[1]), ["c=8", "c=16"], alpha=0.01)
    assert [(tally.level, tally.a, tally.b, tally.judgement) for tally in rows] == [("c=8", a, b, word)]


def test_saturated_loads_share_one_level() -> None:
    """Six of eight at each of two loads: p = 0.0035 alone, 0.007 corrected for two; for three it is not enough."""
    loads = [Load(rate_per_s=float(rate), arrival="poisson") for rate in (1, 2, 3)]

    def at(count: int, *findings: Finding) -> list[TrialRecord]:
        return [
            msgspec.structs.replace(trial_record, load=load)
            for load in loads[:count]
            for trial_record in side(6, *findings)
        ]

    for count, word in ((2, Judgement.WORSE), (3, Judgement.UNCLEAR)):
        levels = [load.label for load in loads[:count]]
        rows = tallies(at(count), at(count, SATURATED), levels, alpha=0.01)
        assert {tally.judgement for tally in rows} == {word}


def test_starts_that_failed() -> None:
    """Deaths inside trials are reported by the trials."""
    failure = EngineFailure("b", 1, EngineFate.DIED)
    (alone,) = tallies(side(0), [], [], alpha=0.01, failures_b=[failure])
    assert (alone.failure_mode, alone.level, alone.judgement) == (FailureMode.NOT_STARTED, None, Judgement.WORSE)
    (inside,) = tallies(side(0), side(1, DIED), ["c=8"], alpha=0.01, failures_b=[failure])
    assert inside.failure_mode is FailureMode.DIED
    rows = tallies(side(0), side(0), [], alpha=0.01, failures_a=[failure], failures_b=[failure])
    assert [tally.judgement for tally in rows] == [Judgement.SAME]


def test_fishers_test_worked_by_hand() -> None:
    """Three among 5 + 5 trials, all on one side: 5·4·3 / (10·9·8) = 1/12."""
    assert fisher((0, 5), (3, 5)) == pytest.approx(1 / 12)
    assert fisher((3, 5), (0, 5)) == fisher((0, 5), (0, 5)) == 1.0
    assert fisher((0, 3), (3, 3)) == pytest.approx(1 / 20)


def test_a_tally_in_words() -> None:
    tally = Tally("c=8", FailureMode.SATURATED, (0, 8), (6, 8), Judgement.WORSE, 0.0035)
    assert tally_text(tally, "main", "branch") == (
        "trials at c=8: branch fell behind its arrivals in 6 of 8, main in 0 of 8 (Fisher: p 0.0035)"
    )
    starts = Tally(None, FailureMode.NOT_STARTED, (0, 8), (1, 8), Judgement.WORSE)
    assert tally_text(starts, "a", "b") == "starts: b did not start or died between trials 1 time, a 0 times"
