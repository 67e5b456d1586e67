"""An engine whose processes were stopped for a while is detected by their state."""

from collections.abc import Sequence

from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid
from bakeoff.results.records import Load, RequestRecord, TelemetryRecord, Verdict, Window
from tests.harness.samples import request

S = 1_000_000_000
MEASURED = [request(i) for i in range(10)]


def readings(
    stops: Sequence[int | None], processes: int = 1, source: str = "engine", start_s: float = 1.0
) -> list[TelemetryRecord]:
    """One sample each 0.1 s."""
    times = [round((start_s + 0.1 * i) * S) for i in range(len(stops))]
    return [
        TelemetryRecord(t_ns, source, {"processes": processes, "stopped": count})
        for t_ns, count in zip(times, stops, strict=True)
    ]


def findings_of(telemetry: Sequence[TelemetryRecord], requests: Sequence[RequestRecord] = MEASURED) -> list[Finding]:
    verdict, findings = judge(Evidence(requests, telemetry, Load(concurrency=1), Window(0, 10 * S), 0.01))
    assert (verdict is Verdict.INVALID) == bool(findings)
    return findings


def stopped(processes: int, of: int, stopped_s: float) -> Finding:
    return invalid(FindingCode.ENGINE_STOPPED, stopped_processes=processes, processes=of, stopped_s=stopped_s)


def test_an_engine_that_always_ran_was_not_stopped() -> None:
    assert findings_of([]) == []
    assert findings_of(readings([0] * 50)) == []
    assert findings_of(readings([None] * 50)) == [], "its processes could not be read"


def test_stopped_time_invalidates_the_trial() -> None:
    assert findings_of(readings([0, *[1] * 30, 0, 0, *[1] * 10, 0])) == [stopped(1, 1, 4.0)]


def test_one_stopped_process_of_several_voids_the_trial() -> None:
    assert findings_of(readings([0, *[1] * 30, 0], processes=3)) == [stopped(1, 3, 3.0)]


def test_a_stop_shorter_than_the_sampling_is_ignored() -> None:
    assert findings_of(readings([0, 1, 1, 0])) == []


def test_neither_the_client_nor_the_time_outside_the_load_counts() -> None:
    assert findings_of(readings([1] * 30, source="client")) == []
    assert findings_of(readings([1] * 30, start_s=500)) == []
    assert [finding.code for finding in findings_of(readings([1] * 30), requests=[])] == [FindingCode.WINDOW_EMPTY]
