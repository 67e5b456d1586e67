"""INVALID trials as evidence against an engine, counted by trial."""

import msgspec
import pytest

from bakeoff.results.compare.reliability import FailureMode, Tally, failure_mode_of, tallies
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid, warning
from bakeoff.results.log.run_log import EngineFailure, EngineFate
from bakeoff.results.records import Load, TrialRecord, Verdict
from bakeoff.results.report.tallies import tally_text
from bakeoff.results.statistics import Judgement
from tests.results.handmade import trial

LOAD = Load(concurrency=8)
DIED, RESTARTED = invalid(FindingCode.ENGINE_DIED), invalid(FindingCode.ENGINE_RESTARTED)
SATURATED = invalid(FindingCode.SATURATED)
FAILED = invalid(FindingCode.FAILED_REQUESTS, failed_requests=12, measured_requests=1_000)
DOWN = invalid(FindingCode.FAILED_REQUESTS, failed_requests=900, measured_requests=1_000)
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
        ((invalid(FindingCode.BECAME_SLOWER),), None),  # the trial is measured again
        ((invalid(FindingCode.BECAME_FASTER),), None),
        ((warning(FindingCode.OUTPUT_LENGTH), LATE), None),
    ],
)
def test_the_most_damning_finding_of_the_engine_counts(
    findings: tuple[Finding, ...], failure_mode: FailureMode | None
) -> None:
    assert failure_mode_of(record(*findings)) is failure_mode


@pytest.mark.parametrize("finding", [FAILED, SATURATED, DOWN])
@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ((0, 8), (2, 8), Judgement.UNCLEAR),
        ((0, 8), (4, 8), Judgement.UNCLEAR),
        ((0, 8), (5, 8), Judgement.WORSE),
        ((1, 8), (1, 8), Judgement.SAME),
        ((1, 8), (6, 8), Judgement.UNCLEAR),
        ((1, 8), (7, 8), Judgement.WORSE),
        ((3, 8), (0, 8), Judgement.SAME),
        ((3, 24), (1, 8), Judgement.SAME),
        ((2, 24), (1, 8), Judgement.UNCLEAR),
        ((0, 3), (2, 3), Judgement.UNCLEAR),
        ((0, 4), (4, 4), Judgement.WORSE),
        ((0, 1), (1, 1), Judgement.UNCLEAR),
        ((0, 0), (2, 8), Judgement.UNCLEAR),
        ((0, 0), (2, 2), Judgement.UNCLEAR),
    ],
)
def test_how_many_more_are_worse(finding: Finding, a: tuple[int, int], b: tuple[int, int], word: Judgement) -> None:
    rows = tallies(side(a[0], finding, of=a[1]), side(b[0], finding, of=b[1]), ["c=8", "c=16"], alpha=0.01)
    assert [(tally.level, tally.a, tally.b, tally.judgement) for tally in rows] == [("c=8", a, b, word)]


@pytest.mark.parametrize(
    ("finding", "least"), [(DOWN, 2), (SATURATED, 3), (FAILED, 4), (invalid(FindingCode.NOT_FOUND), 2)]
)
def test_how_few_trials_tell_that_an_engine_fails_all(finding: Finding, least: int) -> None:
    """A share of failures near the limit exceeds it by chance; 90 % never does."""
    for count in (1, 2, 3, 4):
        (tally,) = tallies(side(0, of=count), side(count, finding, of=count), ["c=8"], alpha=0.01)
        assert tally.judgement is (Judgement.WORSE if count >= least else Judgement.UNCLEAR)


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ((0, 8), (1, 8), Judgement.WORSE),
        ((0, 3), (2, 3), Judgement.WORSE),
        ((0, 1), (1, 1), Judgement.WORSE),
        ((1, 8), (1, 8), Judgement.SAME),
        ((1, 8), (2, 8), Judgement.UNCLEAR),
        ((0, 0), (1, 8), Judgement.UNCLEAR),
    ],
)
def test_an_engine_does_not_die_by_chance(a: tuple[int, int], b: tuple[int, int], word: Judgement) -> None:
    (tally,) = tallies(side(a[0], DIED, of=a[1]), side(b[0], DIED, of=b[1]), ["c=8"], alpha=0.01)
    assert tally.judgement is word


def test_all_trials_that_failed_count_together_if_the_baseline_never_failed() -> None:
    b = [record(SATURATED), record(DOWN), record(DOWN)]
    assert {tally.judgement for tally in tallies(side(0, of=3), b, ["c=8"], alpha=0.01)} == {Judgement.WORSE}
    elsewhere = msgspec.structs.replace(record(SATURATED), load=Load(concurrency=16))
    rows = tallies([*side(0, of=3), elsewhere], b, ["c=8", "c=16"], alpha=0.01)
    assert Judgement.WORSE not in {tally.judgement for tally in rows}


def test_all_loads_and_kinds_share_one_level() -> None:
    """Six of eight: p = 0.0011 alone, 0.009 corrected for eight loads; for ten it is not enough."""
    loads = [Load(concurrency=number) for number in range(1, 11)]

    def at(count: int, *findings: Finding) -> list[TrialRecord]:
        return [
            msgspec.structs.replace(trial_record, load=load)
            for load in loads[:count]
            for trial_record in side(6, *findings)
        ]

    for count, word in ((8, Judgement.WORSE), (10, Judgement.UNCLEAR)):
        levels = [load.label for load in loads[:count]]
        rows = tallies(at(count), at(count, FAILED), levels, alpha=0.01)
        assert {tally.judgement for tally in rows} == {word}


def test_starts_that_failed() -> None:
    """Deaths inside trials are reported by the trials."""
    failure = EngineFailure("b", 1, EngineFate.DIED)
    (never,) = tallies(side(0), [], [], alpha=0.01, failures_b=[failure])
    assert (never.failure_mode, never.level, never.judgement) == (FailureMode.NOT_STARTED, None, Judgement.WORSE)
    (once,) = tallies(side(0), side(0), [], alpha=0.01, failures_b=[failure])
    assert (once.b, once.judgement) == ((1, 9), Judgement.WORSE)
    (inside,) = tallies(side(0), side(1, DIED), ["c=8"], alpha=0.01, failures_b=[failure])
    assert inside.failure_mode is FailureMode.DIED
    rows = tallies(side(0), side(0), [], alpha=0.01, failures_a=[failure], failures_b=[failure])
    assert [tally.judgement for tally in rows] == [Judgement.SAME]


def test_a_tally_in_words() -> None:
    tally = Tally("c=8", FailureMode.SATURATED, (0, 8), (6, 8), Judgement.WORSE, 0.0035)
    text = "trials at c=8: branch fell behind its arrivals in 6 of 8, main in 0 of 8 (Boschloo: p 0.0035)"
    assert tally_text(tally, "main", "branch") == text
    doubt = msgspec.structs.replace(tally, judgement=Judgement.UNCLEAR, trials_needed=12)
    assert tally_text(doubt, "main", "branch") == f"{text}; about 12 of each side would decide"
    starts = Tally(None, FailureMode.NOT_STARTED, (0, 8), (1, 8), Judgement.WORSE)
    assert tally_text(starts, "a", "b") == "starts: b did not start or died between trials 1 time, a 0 times"
