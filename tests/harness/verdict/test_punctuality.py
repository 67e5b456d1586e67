"""Whether the client kept its schedule, in trials of any length."""

import pytest
from msgspec.structs import replace

from bakeoff.harness.client.worker.loop_lag import BUSY_SHARE, NAMES, SOURCE
from bakeoff.harness.verdict.punctuality import off_schedule, stalled
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid
from bakeoff.results.records import RequestRecord, TelemetryRecord
from bakeoff.results.requests import Requests
from tests.harness.samples import request

MS = 1_000_000


def loop_lag(p99_s: float | None, busy_share: float | None = None) -> TelemetryRecord:
    return TelemetryRecord(0, SOURCE, {**dict.fromkeys(NAMES, p99_s), BUSY_SHARE: busy_share})


def sent(count: int, late: int = 0, late_ms: float = 6.0, every_ms: float = 100.0) -> list[RequestRecord]:
    """Requests of an open loop, each 0.1 ms late except for some in the middle."""
    middle = range(count // 2, count // 2 + late)
    lags_ms = [late_ms if i in middle else 0.1 for i in range(count)]
    return [
        request(i, planned_ns=round(i * every_ms * MS), sent_ns=round((i * every_ms + lag_ms) * MS))
        for i, lag_ms in enumerate(lags_ms)
    ]


def test_a_worker_that_stalled_voids_the_trial():
    """TTFT is 200 ms, gaps are 20 ms: a lag of 2 ms is a tenth of a gap."""
    assert stalled([loop_lag(0.0019)], [0.2, 0.02], 0.1) is None
    finding = stalled([loop_lag(0.001), loop_lag(0.0021)], [0.2, 0.02], 0.1)
    assert finding == invalid(FindingCode.CLIENT_STALLED, loop_lag_s=0.0021, max_loop_lag_s=0.002)


def test_a_stall_of_an_idle_client_is_a_pause_of_the_machine():
    paused, busy = (stalled([loop_lag(0.001, 1.0), loop_lag(0.025, share)], [0.1], 0.125) for share in (0.25, 0.75))
    assert paused == invalid(FindingCode.CLIENT_PAUSED, loop_lag_s=0.025, max_loop_lag_s=0.0125, idle_share=0.75)
    assert busy == invalid(FindingCode.CLIENT_STALLED, loop_lag_s=0.025, max_loop_lag_s=0.0125)


def test_lateness_below_a_millisecond_is_no_stall():
    assert stalled([loop_lag(0.0009)], [0.002, 0.0001], 0.1) is None


@pytest.mark.parametrize(
    ("telemetry", "typical_s"),
    [
        ([], [0.1]),
        ([loop_lag(None)], [0.1]),
        ([loop_lag(9.0)], [None, None]),
        ([TelemetryRecord(0, "host", {})], [0.1]),
    ],
    ids=["not sampled", "too short", "no token", "of something else"],
)
def test_an_unknown_lag_is_no_stall(telemetry: list[TelemetryRecord], typical_s: list[float | None]):
    assert stalled(telemetry, typical_s, 0.1) is None


@pytest.mark.parametrize(("count", "allowed"), [(20, 2), (200, 2), (660, 6), (2000, 20)])
def test_one_percent_of_the_requests_may_be_late_and_two_of_any_trial(count: int, allowed: int):
    assert off_schedule(Requests(sent(count, allowed))) == []
    (finding,) = off_schedule(Requests(sent(count, allowed + 1)))
    assert finding == invalid(FindingCode.CLIENT_LATE, late_share=(allowed + 1) / count, send_lag_s=0.005)


def test_time_to_connect_is_not_lateness():
    far = [
        replace(
            record,
            dial_start_ns=record.planned_ns,
            dial_end_ns=record.planned_ns + 200 * MS,
            sent_ns=record.planned_ns + 200 * MS,
        )
        for record in sent(40)
    ]
    assert off_schedule(Requests([*sent(40), *far])) == []


def test_a_client_that_falls_behind_sends_at_another_rate():
    slower = [replace(record, sent_ns=round(record.planned_ns * 1.02)) for record in sent(50)]
    late, off = off_schedule(Requests(slower))
    assert late.code is FindingCode.CLIENT_LATE
    assert off.code is FindingCode.CLIENT_OFF_RATE
    assert off.parameters["rate_share"] == pytest.approx(1 / 1.02)


def test_the_rate_of_a_short_burst_is_not_off_by_a_hiccup():
    assert (
        off_schedule(
            Requests(
                replace(record, sent_ns=(record.sent_ns or 0) + i * MS) for i, record in enumerate(sent(4, every_ms=2))
            )
        )
        == []
    )


def test_nothing_sent_is_nothing_late():
    assert off_schedule(Requests([])) == []
    assert off_schedule(Requests([request(sent_ns=None)])) == []
