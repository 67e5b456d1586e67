"""Servers that fail: pauses, the end of the ramp, and the trials that are left out."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from bakeoff.engines.dialects import HttpRequest, ReferenceDialect
from bakeoff.harness.client import Driver, Transport
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.worker.failing import FailureDetector, RampFailures
from bakeoff.harness.client.worker.session_feed import PreparedSession
from bakeoff.harness.client.worker.sessions import RequestInFlight
from bakeoff.harness.host.clock import LoopClock, run_virtual
from bakeoff.harness.virtual import Fault, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import RunStatus, StreamEnd, Verdict
from tests.harness.driving import S, wire
from tests.harness.samples import DONE, FINISH, TOKEN, MemoryRecorder, closed
from tests.selection import sampled

WHOLE = [(0.0, TOKEN + FINISH + DONE)]
BROKEN = {
    "error event": [(0.0, TOKEN + b'data: {"error": {"message": "no"}}\n\n' + FINISH)],
    "no finish reason": [(0.0, TOKEN)],
    "bad chunk": [(0.0, b"data: {nonsense\n\n")],
    "no token": [(0.0, FINISH)],
    "nothing": [],
}


class _NoTransport:
    """Prepares requests that are never sent."""

    def prepare(self, request: HttpRequest, conversation: str = "") -> HttpRequest:
        return request


def ended(
    reads: list[bytes], *, status: int | None = 200, end: StreamEnd = StreamEnd.COMPLETE, at_ns: int = 0
) -> RequestInFlight:
    """A request that took no time."""
    (session,) = wire(closed(1))
    prepared = PreparedSession(session, cast("Transport", _NoTransport()), None)
    request = RequestInFlight(prepared, 0, at_ns)
    request.reads, request.read_ns = reads, [at_ns] * len(reads)
    request.status, request.end, request.ended_ns, request.started_ns = status, end, at_ns, at_ns
    return request


@pytest.mark.parametrize("reads", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_a_failure(reads: list[tuple[float, bytes]]) -> None:
    assert FailureDetector(ReferenceDialect()).has_failed(ended([read for _, read in reads]))


@pytest.mark.parametrize(("status", "end", "failed"), [
    (503, StreamEnd.COMPLETE, True), (302, StreamEnd.COMPLETE, True), (None, StreamEnd.REFUSED, True),
    (200, StreamEnd.RESET, True), (200, StreamEnd.TIMEOUT, True), (200, StreamEnd.CANCELLED, False),
    (200, StreamEnd.COMPLETE, False),
])  # fmt: skip
def test_statuses_and_connections_show_failures(status: int | None, end: StreamEnd, failed: bool) -> None:
    assert FailureDetector(None).has_failed(ended([], status=status, end=end)) is failed


def test_whole_answers_are_soon_decoded_after_the_next_request_and_failures_are_still_found() -> None:
    async def scene() -> list[bool]:
        detector = FailureDetector(ReferenceDialect())
        assert not any(detector.has_failed(ended([TOKEN + FINISH])) for _ in range(10))
        found = []
        for number in range(3):
            found.append(detector.has_failed(ended([TOKEN], at_ns=(1 + number) * S)))
            await asyncio.sleep(0)
        return found

    assert run_virtual(scene()) == [False, True, True]


def closed_loop(reads: list[tuple[float, bytes]], *, status: int = 200, end: StreamEnd = StreamEnd.COMPLETE) -> int:
    """Requests of a closed loop of two slots in a second."""

    async def scene() -> int:
        recorder, transport = MemoryRecorder(), ScriptedTransport(reads, status=status, end=end)
        driver = Driver(transport, clock=LoopClock(), recorder=recorder, timeout_s=9, dialect=ReferenceDialect())
        await driver.closed_loop(wire(closed(10_000)), 2, duration_s=1.0)
        return len(recorder.records)

    return run_virtual(scene())


@pytest.mark.parametrize("reads", BROKEN.values(), ids=BROKEN)
def test_every_kind_of_broken_answer_pauses_its_slot(reads: list[tuple[float, bytes]]) -> None:
    assert closed_loop(reads) == 20


@pytest.mark.parametrize(
    ("reads", "status", "end"),
    [
        (WHOLE, 401, StreamEnd.COMPLETE),
        (WHOLE, 302, StreamEnd.COMPLETE),
        ([(0.0, TOKEN)], 200, StreamEnd.RESET),
    ],
)
def test_refusals_resets_and_redirects_pause_equally(
    reads: list[tuple[float, bytes]], status: int, end: StreamEnd
) -> None:
    assert closed_loop(reads, status=status, end=end) == 20


@pytest.mark.parametrize("end", sampled([StreamEnd.RESET, StreamEnd.TIMEOUT], [StreamEnd.TIMEOUT]))
def test_a_connection_that_breaks_or_stays_open_behind_the_whole_answer_pauses_nothing(end: StreamEnd) -> None:
    assert closed_loop(WHOLE, end=end) == 10_000


def trials(tmp_path: Path, engine: VirtualEngine, *loads: dict[str, object], **trial: object):
    """The run of two engines, of which the first one fails, at two levels."""
    levels = list(loads) or [{"concurrency": 1}, {"concurrency": 4}]
    limits = {"ramp_s": 5.0, "duration_s": 20.0, "warm_up_s": 0.0, **trial}
    experiment = virtual_experiment(["bad", "good"], levels, repeats=1, trial=limits)
    return virtual_run(experiment, {"bad": engine, "good": VirtualEngine()}, tmp_path)


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Fault.HTTP_401, FindingCode.NOT_AUTHORISED), (Fault.HTTP_302, FindingCode.REDIRECTED)],
)
@pytest.mark.parametrize("load", [{"concurrency": 4}, {"rate_per_s": 0.5, "arrival": "poisson"}])
def test_a_rejection_ends_the_engine_s_trials_and_no_other_engine_s(
    tmp_path: Path, fault: Fault, code: FindingCode, load: dict[str, object]
) -> None:
    run = trials(tmp_path, VirtualEngine(faults={fault: 1.0}), load, {"concurrency": 2})
    assert [trial.record.id for trial in run.finished if trial.record.engine == "bad"] == ["r1-bad-1"]
    assert len([trial for trial in run.finished if trial.record.engine == "good"]) == 2
    (bad,) = (trial.record for trial in run.finished if trial.record.engine == "bad")
    assert [finding.code for finding in bad.findings] == [code]
    assert bad.ended_ns - bad.started_ns < 10 * S
    assert run.status is RunStatus.FAILED
    assert (run.manifest.failure or "").startswith("bad: ")


@pytest.mark.parametrize("load", [{"concurrency": 4}, {"rate_per_s": 2.0, "arrival": "poisson"}])
def test_a_server_that_sends_nothing_is_given_up_after_its_first_timeouts(
    tmp_path: Path, load: dict[str, object]
) -> None:
    run = trials(tmp_path, VirtualEngine(faults={Fault.SILENT: 1.0}), load, timeout_s=40.0)
    (bad,) = (trial.record for trial in run.finished if trial.record.engine == "bad")
    assert [finding.code for finding in bad.findings] == [FindingCode.RAMP_FAILED]
    assert 40 * S < bad.ended_ns - bad.started_ns < 65 * S


@pytest.mark.parametrize(
    "fault",
    sampled(
        [Fault.HTTP_503, Fault.HTTP_429, Fault.REFUSED, Fault.ERROR_EVENT, Fault.TRUNCATED, Fault.EMPTY, Fault.RESET],
        [Fault.HTTP_503, Fault.TRUNCATED],
    ),
)
def test_a_ramp_that_only_fails_ends_its_trial_and_not_the_others(tmp_path: Path, fault: Fault) -> None:
    run = trials(tmp_path, VirtualEngine(faults={fault: 1.0}))
    bad = [trial for trial in run.finished if trial.record.engine == "bad"]
    assert len(bad) == 2
    for trial in bad:
        code = FindingCode.RATE_LIMITED if fault is Fault.HTTP_429 else FindingCode.RAMP_FAILED
        assert [finding.code for finding in trial.record.findings] == [code]
        assert trial.record.ended_ns - trial.record.started_ns < 10 * S
        slots = trial.record.load.concurrency or 1
        assert len(trial.requests) <= 60 * slots, "slots pause after each failure"
    assert run.status is RunStatus.COMPLETE


def test_no_share_of_failures_makes_a_failed_ramp_valid(tmp_path: Path) -> None:
    run = trials(tmp_path, VirtualEngine(faults={Fault.HTTP_500: 1.0}), max_failure_share=1.0)
    assert {trial.record.verdict for trial in run.finished if trial.record.engine == "bad"} == {Verdict.INVALID}


def test_a_ramp_in_which_some_requests_fail_goes_on_and_is_named(tmp_path: Path) -> None:
    run = trials(tmp_path, VirtualEngine(faults={Fault.HTTP_503: 0.3}), max_failure_share=0.1)
    for trial in (trial for trial in run.finished if trial.record.engine == "bad"):
        assert {FindingCode.FAILED_REQUESTS, FindingCode.RAMP_FAILURES} <= {f.code for f in trial.record.findings}


def test_the_pause_after_a_failure_counts_in_the_turnover(tmp_path: Path) -> None:
    run = trials(tmp_path, VirtualEngine(faults={Fault.HTTP_500: 0.99}), {"concurrency": 8}, max_failure_share=1.0)
    (bad,) = (trial for trial in run.finished if trial.record.engine == "bad")
    assert bad.record.ramp is not None
    assert bad.record.ramp.turnover_s == pytest.approx(0.1, rel=0.1)
    planned = bad.record.traffic.requests if bad.record.traffic else 0
    assert planned < 8 * (1 + 2.5 * 20 / 0.1)


def test_rejections_at_a_low_rate_are_enough_after_three_seconds() -> None:
    failures = RampFailures()
    rejected = ended([], status=401, at_ns=S)
    rejected.has_failed = True
    failures.add(rejected)
    assert not failures.are_rejections(2 * S)
    assert failures.are_rejections(4 * S)
    whole = ended([TOKEN + FINISH], at_ns=5 * S)
    failures.add(whole)
    assert not failures.are_rejections(9 * S)
    assert not failures.are_all
