"""Whether the client was on time in one trial: rules of its verdict, as pure functions over its log."""

from collections.abc import Iterable, Sequence

from harness.client.loop_lag import SOURCE
from results.findings import Finding, FindingCode, invalid
from results.metrics import latency
from results.records import RequestRecord, TelemetryRecord

MAX_LATE_S = 0.005
"""A request of an open loop that is sent later than this is late;"""
MAX_LATE_SHARE = 0.01
"""more than this share of them is too much;"""
FORGIVEN = 2
"""so many are forgiven in any trial: one hiccup of a machine delays neighbours alike."""
MAX_RATE_ERROR = 0.005
"""By this share the rate at which requests were sent may differ from the plan's."""
MIN_STALL_S = 0.001
"""Loop lag below this is no stall; what it adds to latencies is part of the client's calibrated error."""


def stalled(
    telemetry: Iterable[TelemetryRecord], typical_s: Iterable[float | None], max_error_share: float
) -> Finding | None:
    """A worker whose loop was late stamped what came meanwhile late, by up to as much.

    The 99th percentile of the worst worker's lateness may be :data:`MIN_STALL_S`, or ``max_error_share`` of the
    shortest typical latency.

    Args:
        telemetry: of the trial.
        typical_s: what the trial's latencies are of the order of: its median TTFT, its mean gap between chunks.
        max_error_share: as the experiment's ``client.max_error_share``.
    """
    lags_s = [
        value
        for record in telemetry
        if record.source == SOURCE and isinstance(value := record.values.get("loop_lag_p99_s"), int | float)
    ]
    known_s = [value for value in typical_s if value is not None]
    if not lags_s or not known_s:
        return None
    limit_s = max(MIN_STALL_S, max_error_share * min(known_s))
    if max(lags_s) <= limit_s:
        return None
    return invalid(FindingCode.CLIENT_STALLED, loop_lag_s=max(lags_s), max_loop_lag_s=limit_s)


def off_schedule(requests: Sequence[RequestRecord]) -> list[Finding]:
    """An open loop that did not keep its schedule is none.

    Args:
        requests: of one open loop, under load.
    """
    sent = [(_due_ns(request), lag_s) for request in requests if (lag_s := latency.send_lag_s(request)) is not None]
    if not sent:
        return []
    findings: list[Finding] = []
    late = sum(lag_s > MAX_LATE_S for _, lag_s in sent)
    if late > max(FORGIVEN, MAX_LATE_SHARE * len(sent)):
        findings.append(invalid(FindingCode.CLIENT_LATE, late_share=late / len(sent), send_lag_s=MAX_LATE_S))
    planned_s = _span_s(due_ns / 1e9 for due_ns, _ in sent)
    took_s = _span_s(due_ns / 1e9 + lag_s for due_ns, lag_s in sent)
    if abs(took_s - planned_s) > max(MAX_LATE_S, MAX_RATE_ERROR * took_s):
        findings.append(invalid(FindingCode.CLIENT_OFF_RATE, rate_share=planned_s / took_s))
    return findings


def _due_ns(request: RequestRecord) -> int:
    return request.planned_ns if request.due_ns is None else request.due_ns


def _span_s(times_s: Iterable[float]) -> float:
    times = list(times_s)
    return max(times) - min(times)
