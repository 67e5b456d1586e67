"""Trials that the client or the machine spoilt are measured again; those of the engine are its evidence."""

import io

import pytest
from rich.console import Console

from bakeoff.harness.conduct.policies import Done
from bakeoff.harness.conduct.policies.fixed_plan import FixedPlan, is_spoilt
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.virtual import virtual_experiment
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity
from bakeoff.results.log.run_log import RunLog, TrialFinished, TrialPlanned
from bakeoff.results.records import Load, TrialPlan, TrialRecord, Verdict, Window

LOAD = Load(concurrency=1)
PLAN2 = [TrialPlan(f"{engine}-{repeat}", engine, "w", LOAD, repeat) for repeat in (3, 4) for engine in "ab"]
PLAN = [TrialPlan(f"{engine}-{repeat}", engine, "w", LOAD, repeat) for repeat in (1, 2) for engine in "ab"]


def record(plan: TrialPlan, *codes: FindingCode) -> TrialRecord:
    return TrialRecord(
        id=plan.id, engine=plan.engine, workload="w", load=LOAD, repeat=plan.repeat, order=1, started_ns=0, ended_ns=1,
        issue_start_ns=0, issue_end_ns=1, window=Window(0, 1), planned_requests=0, workload_sha256="",
        verdict=Verdict.INVALID if codes else Verdict.VALID, replaces=plan.replaces, attempt=plan.attempt,
        findings=[Finding(code, Severity.INVALID, {"detail": "it ended"}) for code in codes],
    )  # fmt: skip


def measured(spoilt: dict[str, FindingCode]) -> list[str]:
    """Ids in the order of measuring."""
    log, policy, order = RunLog(), FixedPlan(PLAN), list[str]()
    while isinstance(decision := policy.next(log), TrialPlanned):
        assert not decision.ends_turn, "its engine must still run if it is measured again"
        order.append(decision.plan.id)
        codes = [spoilt[decision.plan.id]] if decision.plan.id in spoilt else []
        log.add(TrialFinished(record=record(decision.plan, *codes)))
    assert isinstance(decision, Done)
    return order


def test_a_spoilt_trial_is_measured_again_while_its_engine_runs() -> None:
    order = measured({"a-1": FindingCode.FOREIGN_LOAD})
    assert order == ["a-1", "a-1-again", "b-1", "a-2", "b-2"]


def test_the_progress_counts_it() -> None:
    experiment = virtual_experiment(["a"], [{"concurrency": 1}], repeats=2)
    out, log = io.StringIO(), RunLog()
    observer, policy = PlainObserver(Console(file=out), experiment), FixedPlan(experiment.plan())
    while isinstance(decision := policy.next(log), TrialPlanned):
        first = len(log.finished) == 0
        log.add(TrialFinished(record=record(decision.plan, *([FindingCode.CLIENT_LOST] if first else []))))
        observer.event(log)
    assert [line.split()[0] for line in out.getvalue().splitlines() if line[0] == "["] == ["[1/2]", "[2/3]", "[3/3]"]


def test_it_is_measured_again_until_it_is_whole_within_twice_the_plan() -> None:
    load, stalled = FindingCode.FOREIGN_LOAD, FindingCode.CLIENT_STALLED
    spoilt = {"a-1": load, "a-1-again": stalled, "b-1": load, "b-1-again": stalled, "a-2": load}
    assert measured(spoilt) == [
        "a-1", "a-1-again", "a-1-again-2", "b-1", "b-1-again", "b-1-again-2", "a-2", "b-2"
    ]  # fmt: skip


def test_an_engine_that_is_slower_twice_is_so_by_itself() -> None:
    slower = FindingCode.BECAME_SLOWER
    assert measured({"a-1": slower, "a-1-again": slower})[:3] == ["a-1", "a-1-again", "b-1"]


def test_a_machine_that_spoils_six_in_a_row_ends_the_run_with_what_it_has() -> None:
    spoilt = dict.fromkeys(["b-1", "b-1-again", "b-1-again-2", "a-2", "a-2-again"], FindingCode.CLIENT_LOST)
    assert measured(spoilt)[-2:] == ["a-2-again", "b-2"], "no attempt is left, and five are not six"
    log, policy = RunLog(), FixedPlan([*PLAN, *PLAN2])
    while isinstance(decision := policy.next(log), TrialPlanned):
        codes = [FindingCode.CLIENT_LOST] if decision.plan.repeat == 2 else []
        codes += [FindingCode.THROTTLED] if decision.plan.id == "a-2-again" else []
        log.add(TrialFinished(record=record(decision.plan, *codes)))
    assert len(log.finished) == 2 + 6
    (note,) = decision.notes
    assert note.startswith("ended early, because 6 trials in a row were spoilt: it ended")


@pytest.mark.parametrize(
    ("codes", "spoilt"),
    [
        ([FindingCode.THROTTLED], True),
        ([FindingCode.CLIENT_LATE, FindingCode.FOREIGN_LOAD], True),
        ([FindingCode.FOREIGN_LOAD, FindingCode.FAILED_REQUESTS], False),
        ([FindingCode.ENGINE_DIED], False),
        ([FindingCode.WINDOW_TOO_SHORT], False),
        ([], False),
    ],
)
def test_an_engines_failures_are_never_repeated(codes: list[FindingCode], spoilt: bool) -> None:
    assert is_spoilt(record(PLAN[0], *codes)) is spoilt
