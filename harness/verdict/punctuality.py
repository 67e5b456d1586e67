"""Whether the client kept to its schedule: rules of the verdict, as pure functions over a trial's log."""

from collections.abc import Iterable

import numpy as np

from bakeoff.harness.client.worker.loop_lag import BUSY_SHARE, SOURCE, STALL_NS
from bakeoff.results.columns import UNKNOWN
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid
from bakeoff.results.metrics import latency
from bakeoff.results.records import TelemetryRecord
from bakeoff.results.requests import Requests

MAX_LATE_S = 0.005
"""A request of an open loop that is sent this much after its planned time is late."""
MAX_LATE_SHARE = 0.01
"""Largest share of late requests."""
MAX_LATE_REQUESTS = 2
"""Late requests that any trial may have: one hiccup of the machine delays neighbouring requests together."""
MAX_RATE_ERROR = 0.005
"""Largest relative difference between the actual and the planned send rate."""
MAX_PAUSED_BUSY_SHARE = 0.5
"""The client paused for the machine if its own work took at most this share of its stalls."""


def stalled(
    telemetry: Iterable[TelemetryRecord], typical_s: Iterable[float | None], max_error_share: float
) -> Finding | None:
    """A worker whose event loop lagged, so that it stamped incoming chunks late by up to that lag.

    The worst worker's 99th percentile lag may reach 1 ms, or ``max_error_share`` of the smallest typical
    latency.

    Args:
        telemetry: of the trial.
        typical_s: typical latencies of the trial in seconds: its median TTFT, its mean gap between chunks.
        max_error_share: the experiment's ``client.max_error_share``.
    """
    lags = [
        (value, record)
        for record in telemetry
        if record.source == SOURCE and isinstance(value := record.values.get("loop_lag_p99_s"), int | float)
    ]
    known_s = [value for value in typical_s if value is not None]
    if not lags or not known_s:
        return None
    limit_s = max(STALL_NS / 1e9, max_error_share * min(known_s))
    lag_s, worst = max(lags, key=lambda lag: lag[0])
    if lag_s <= limit_s:
        return None
    busy_share = worst.values.get(BUSY_SHARE)
    if isinstance(busy_share, int | float) and busy_share <= MAX_PAUSED_BUSY_SHARE:
        return invalid(FindingCode.CLIENT_PAUSED, loop_lag_s=lag_s, max_loop_lag_s=limit_s, idle_share=1 - busy_share)
    return invalid(FindingCode.CLIENT_STALLED, loop_lag_s=lag_s, max_loop_lag_s=limit_s)


def off_schedule(requests: Requests) -> list[Finding]:
    """Late requests, or a wrong send rate: an open loop must keep its schedule.

    Args:
        requests: of one open loop, under load.
    """
    lags_s, due_ns = latency.send_lag_s(requests), requests.ints("due_ns")
    is_sent = ~np.isnan(lags_s)
    if not is_sent.any():
        return []
    due_s = np.where(due_ns == UNKNOWN, requests.ints("planned_ns"), due_ns)[is_sent] / 1e9
    lags_s = lags_s[is_sent]
    findings: list[Finding] = []
    late = int((lags_s > MAX_LATE_S).sum())
    if late > max(MAX_LATE_REQUESTS, MAX_LATE_SHARE * len(lags_s)):
        findings.append(invalid(FindingCode.CLIENT_LATE, late_share=late / len(lags_s), send_lag_s=MAX_LATE_S))
    planned_s, took_s = float(np.ptp(due_s)), float(np.ptp(due_s + lags_s))
    if abs(took_s - planned_s) > max(MAX_LATE_S, MAX_RATE_ERROR * took_s):
        findings.append(invalid(FindingCode.CLIENT_OFF_RATE, rate_share=planned_s / took_s))
    return findings
