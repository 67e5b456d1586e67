"""Faults under load, on virtual servers whose times are known: what a killed replica costs, and when it is back."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff import results
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_run
from bakeoff.harness.virtual.engine import Fault
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.metrics.recovery import recoveries
from bakeoff.results.records import FaultAction, FaultRecord, Outcome, Phase, RequestRecord, Slo, Verdict, Window
from bakeoff.results.report import render_html
from bakeoff.results.report.sections.faults import figures_of, name_of
from bakeoff.results.requests import Requests
from bakeoff.results.run.faults import faults_of
from bakeoff.results.show.table import Cell

RATE, E2E_S, START_S, NS = 20.0, 0.25, 2.0, 1_000_000_000
URLS = ("http://one:80", "http://two:80")
ENGINE = VirtualEngine(service=PerToken(Fixed(0.05), Fixed(0.05)), start_s=START_S)
RESTART = {"action": "restart", "at_s": 10, "for_s": 5, "replica": "two:80", "end": ["start", "it"]}


def experiment(*faults: dict[str, Any], urls: tuple[str, ...] = URLS, **changes: Any) -> Experiment:
    engine: dict[str, Any] = {"adapter": "openai", "label": "a", "urls": [{"url": url} for url in urls]}
    data = {
        "name": "f", "engines": [engine if urls else {"adapter": "reference", "label": "a"}], "faults": list(faults),
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5, "spread": 0.0}},
        "loads": [{"rate_per_s": RATE, "arrival": "poisson"}], "repeats": 2, "slo": {"e2e_s": 0.3},
        "trial": {"warm_up_s": 0.0, "duration_s": 40}, "quality": {"samples": 0}, **changes,
    }  # fmt: skip
    return experiment_from(data, "f")


def run_of(path: Path, *faults: dict[str, Any], **changes: Any) -> results.Run:
    return virtual_run(experiment(*faults, **changes), {"a": ENGINE}, path)


def test_half_of_the_requests_fail_until_the_killed_replica_is_back(tmp_path: Path):
    run = run_of(tmp_path, RESTART)
    assert [trial.record.verdict for trial in run.finished] == [Verdict.VALID] * 2
    for trial in run.finished:
        (fault,) = trial.record.faults
        assert (fault.action, fault.replica, fault.error) == (FaultAction.RESTART, "two:80", None)
        start_s, window_s = fault.begun_ns / 1e9, trial.record.window.start_ns / 1e9
        assert start_s == pytest.approx(window_s + 10, abs=1e-6)
        assert fault.ended_ns is not None
        assert fault.ready_ns is not None
        assert (fault.ended_ns - fault.begun_ns, fault.ready_ns - fault.ended_ns) == (5_000_000_000, 2_000_000_000)
    (summary,) = faults_of(run)
    assert (summary.trials, summary.recovered) == (2, 2)
    assert summary.recovered_s is not None
    assert summary.recovered_s.centre == pytest.approx(7.0, abs=5 / RATE)  # a few requests from there
    in_progress = RATE * E2E_S
    assert summary.requests == pytest.approx(7 * RATE + in_progress, rel=0.25)
    assert summary.failed == pytest.approx((7 * RATE + in_progress) / 2, rel=0.3)
    assert (summary.lost, summary.late) == (summary.failed, 0)  # all were good in peace
    assert name_of(summary) == "restart of two:80"
    assert figures_of(summary)[0] == Cell("5.00 s", "5.00 / 5.00")
    page = render_html(run)
    assert 'id="faults"' in page
    assert "restart of two:80" in page


def test_an_engine_that_bakeoff_started_comes_back_within_the_trial_and_starts_anew_for_the_next(tmp_path: Path):
    run = run_of(tmp_path, {"action": "restart", "at_s": 10, "for_s": 3}, urls=())
    assert [trial.record.verdict for trial in run.finished] == [Verdict.VALID] * 2
    assert run.manifest.name == "f"
    (summary,) = faults_of(run)
    assert summary.start_s is not None
    assert summary.start_s.centre == pytest.approx(START_S)
    assert summary.recovered_s is not None
    assert summary.recovered_s.centre == pytest.approx(5.0, abs=5 / RATE)
    assert summary.failed == pytest.approx(5 * RATE + RATE * E2E_S, rel=0.25)


def test_each_class_is_held_to_its_own_slo(tmp_path: Path):
    sent = {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5, "spread": 0.0}}
    classes = [{"name": "fast", "workload": sent, "slo": {"e2e_s": 0.2}}, {"name": "slow", "workload": sent}]
    run = run_of(tmp_path, RESTART, classes=classes, workload={"name": "classes"})
    (summary,) = faults_of(run)  # no answer of the first class is good, whatever the fault does
    assert summary.lost == pytest.approx(7 * RATE / 4, rel=0.4)
    assert summary.late == pytest.approx(7 * RATE / 4, rel=0.4)


def test_what_stays_dead_is_not_recovered(tmp_path: Path):
    run = run_of(tmp_path, {"action": "kill", "at_s": 10, "replica": "two:80"}, repeats=1)
    (summary,) = faults_of(run)
    assert (summary.trials, summary.recovered, summary.down_s) == (1, 0, None)
    assert summary.watched_s == pytest.approx(30, abs=1.0)
    assert figures_of(summary)[2].text.startswith(("not within 29.", "not within 30."))


def test_what_an_earlier_fault_broke_is_no_peace(tmp_path: Path):
    first = RESTART | {"at_s": 1, "for_s": 12, "replica": None}
    run = run_of(
        tmp_path, {key: value for key, value in first.items() if value}, RESTART | {"at_s": 25, "replica": "one:80"},
        urls=("http://one:80",), repeats=1,
    )  # fmt: skip
    earlier, later = faults_of(run)
    assert earlier.recovered_s is not None
    assert earlier.recovered_s.centre == pytest.approx(14.0, abs=5 / RATE)
    assert later.recovered_s is not None
    assert later.recovered_s.centre == pytest.approx(7.0, abs=5 / RATE)
    assert later.lost == pytest.approx(7 * RATE, rel=0.25)


def test_a_fault_that_cannot_be_caused_makes_its_trial_invalid_and_says_why(tmp_path: Path):
    run = run_of(tmp_path, {"action": "stop", "at_s": 10, "for_s": 3, "replica": "two:80"})
    for trial in run.finished:
        assert [finding.code for finding in trial.record.findings] == [FindingCode.FAULT_FAILED]
        assert trial.record.faults[0].error == "virtual engines can be killed, not stopped"
    assert faults_of(run) == []


def test_failures_before_a_fault_count_as_ever(tmp_path: Path):
    failing = msgspec.structs.replace(ENGINE, faults={Fault.HTTP_500: 0.4})
    run = virtual_run(experiment(RESTART | {"at_s": 20}), {"a": failing}, tmp_path)
    assert all(FindingCode.FAILED_REQUESTS in {each.code for each in trial.record.findings} for trial in run.finished)


def test_a_fault_as_the_window_opens_is_seen_by_what_the_ramp_was_like(tmp_path: Path):
    (summary,) = faults_of(run_of(tmp_path, RESTART | {"at_s": 0}))
    assert summary.recovered_s is not None
    assert summary.recovered_s.centre == pytest.approx(7.0, abs=5 / RATE)


def answered(ended: list[int | None]) -> Requests:
    """A request each 100 ms, good if it has a time; else the client gave it up at the end."""
    return Requests([
        RequestRecord(
            index=k, phase=Phase.MEASURED, session=f"s{k}", turn=0, planned_ns=k * NS // 10, sent_ns=k * NS // 10,
            ended_ns=100 * NS if end is None else end, outcome=Outcome.CANCELLED if end is None else Outcome.OK,
        )
        for k, end in enumerate(ended)
    ])  # fmt: skip


def test_what_a_hanging_server_never_answers_counts_as_failed_and_lost():
    hangs_from = 101
    requests = answered([k * NS // 10 + NS // 50 if k < hangs_from else None for k in range(200)])
    fault = FaultRecord(FaultAction.STOP, None, 10 * NS, 30 * NS)
    (found,) = recoveries(requests, [fault], Window(0, 20 * NS), Slo(), {})
    assert (found.recovered_s, found.watched_s) == (None, 10.0)
    assert (found.requests, found.failed, found.late) == (100, 99, 0)
    assert found.lost == pytest.approx(99)


def test_a_dead_server_is_dead_even_if_few_requests_were_good_in_peace():
    ends = [k * NS // 10 + NS // 50 if k % 5 == 0 and k < 101 else None for k in range(200)]
    (found,) = recoveries(answered(ends), [FaultRecord(FaultAction.KILL, None, 10 * NS)], Window(0, 20 * NS), Slo(), {})
    assert found.recovered_s is None


@pytest.mark.nightly
def test_runs_with_other_faults_are_not_compared(tmp_path: Path):
    from bakeoff.results.compare.comparability import difference  # noqa: PLC0415

    with_fault, without = run_of(tmp_path / "a", RESTART), run_of(tmp_path / "b")
    assert difference([with_fault.manifest, without.manifest, with_fault.manifest]) is not None
    assert not without.finished[0].record.faults


@pytest.mark.parametrize(
    ("faults", "changes", "message"),
    [
        ([{"action": "kill", "at_s": 50, "replica": "two:80"}], {"repeats": 1}, "raise trial.duration_s"),
        ([{"action": "stop", "at_s": 5, "replica": "two:80"}], {}, "give for_s"),
        ([{"action": "kill", "at_s": 5, "for_s": 2, "replica": "two:80"}], {}, "it has no end; leave out for_s"),
        ([RESTART | {"replica": "three:80"}], {}, "no replica 'three:80'; choose from one:80, two:80"),
        ([RESTART | {"replica": None} | {}], {}, "has several replicas; give replica: one:80, two:80"),
        ([{key: RESTART[key] for key in RESTART if key != "end"}], {}, "give end, the command that starts it again"),
        ([{"action": "kill", "at_s": 5, "replica": "two:80"}], {}, "would be dead in its next trial"),
        ([RESTART | {"engine": "b"}], {}, "there is no engine 'b'; choose from a"),
        ([RESTART], {"loads": [{"concurrency": 4}]}, "give rate_per_s"),
        ([RESTART], {"loads": [{"arrival": "ramp", "rate_per_s": 4}]}, "a load that does not change by itself"),
        ([RESTART, RESTART | {"at_s": 12}], {}, "restart has not ended when restart begins; change at_s"),
        ([{"action": "restart", "at_s": 5, "for_s": 1, "end": ["x"]}], {"urls": ()}, "leave them out"),
        ([RESTART, RESTART | {"at_s": 12, "replica": "one:80"}], {}, "restart has not ended when restart begins"),
        ([RESTART | {"action": "slow"}], {}, "it sends signals; leave out begin and end"),
        ([RESTART | {"action": "stop"}], {}, "end needs begin, the command that causes it"),
        ([RESTART | {"end": [""]}], {}, "the first word of begin and end is a program"),
        (
            [{"action": "start", "at_s": 5, "replica": "two:80"}],
            {},
            "give it replicas, 2 or more",
        ),
    ],
)
def test_what_cannot_be_caused_is_refused(faults: list[dict[str, Any]], changes: dict[str, Any], message: str):
    given = [{key: value for key, value in fault.items() if value is not None} for fault in faults]
    with pytest.raises(BadExperiment, match=message):
        experiment(*given, **changes)
