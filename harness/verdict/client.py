"""Findings of the measuring client: late, stalled, uncertain, or with fewer workers than planned."""

from collections.abc import Iterator

import numpy as np

from bakeoff.harness.calibration.client_error import CALIBRATED_S
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.punctuality import stalled
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid, warning
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.client_error import widest_s
from bakeoff.results.metrics.declaration import known
from bakeoff.results.metrics.percentiles import percentile
from bakeoff.results.records import Window
from bakeoff.results.requests import Requests, inside

_MAX_PACE_RATIO = 1.5
"""Largest ratio of a trial's chunks per second to those at which the client's error was measured."""
MAX_SEND_LAG_S = 0.020
"""Largest tolerable 90th-percentile send lag; a tenth of the TTFT is tolerated too."""


def fewer_workers(evidence: Evidence) -> Iterator[Finding]:
    """Workers that earlier trials lost for good."""
    lost, planned = evidence.lost_workers, evidence.planned_workers
    if lost:
        yield warning(FindingCode.FEWER_WORKERS, lost_workers=lost, planned_workers=planned)


def sent_late(measured: Requests) -> Iterator[Finding]:
    """A tenth of the requests was sent later than planned, by more than their TTFT excuses."""
    lags, ttfts = known(latency.send_lag_s(measured)), known(latency.ttft_s(measured))
    if not len(lags) or not len(ttfts):
        return
    lag = float(np.sort(lags)[int(0.9 * (len(lags) - 1))])
    ttft = percentile(ttfts, 0.5).value or float(ttfts.max())  # too few requests for a median
    if lag > MAX_SEND_LAG_S and lag > 0.1 * ttft:
        yield invalid(FindingCode.CLIENT_LATE, late_share=0.1, send_lag_s=lag)


def stalled_client(evidence: Evidence, load: Requests, inside: Requests) -> Iterator[Finding]:
    """A worker's event loop was late, beside the latencies that it measured."""
    if finding := stalled(evidence.telemetry, _typical_s(load, inside, evidence.window), evidence.max_error_share):
        yield finding


def _typical_s(load: Requests, inside: Requests, window: Window) -> tuple[float | None, float | None]:
    """Median TTFT and mean gap between chunks of a trial; None where there is none."""
    ttfts_s, (gaps_s, _) = known(latency.ttft_s(inside)), latency.chunk_gaps_s(load, window)
    return (
        float(np.median(ttfts_s)) if len(ttfts_s) else None,
        float(gaps_s.mean()) if len(gaps_s) else None,
    )


def client_faults(evidence: Evidence) -> list[Finding]:
    """Latencies that are too small for the error of the client that measured them.

    Uses the mean gap between chunks, because the median gap is 0 for an engine that sends chunks in bursts.
    """
    error = evidence.client_error
    if error is None:
        return []
    load = Requests(evidence.requests).under_load
    ttft_s, gap_s = _typical_s(load, load.planned_inside(evidence.window), evidence.window)
    pairs = (("ttft", widest_s("ttft", error), ttft_s), ("chunk_gap", widest_s("chunk_gap", error), gap_s))
    max_share = evidence.max_error_share
    busy_share = min(1.0, error.cpu_s / max(1, evidence.planned_workers) / CALIBRATED_S)
    return [
        invalid(
            FindingCode.CLIENT_ERROR,
            latency=name,
            error_s=error_s,
            typical_s=typical_s,
            max_error_share=max_share,
            busy_share=busy_share,
        )
        for name, error_s, typical_s in pairs
        if error_s is not None and typical_s is not None and error_s > max_share * typical_s
    ]


def uncalibrated(evidence: Evidence, measured: Requests) -> Iterator[Finding]:
    """A trial that was much faster than the calibration: its client error may be larger than measured."""
    error = evidence.client_error
    if error is None or evidence.window.length_s <= 0:
        return
    chunks = int(inside(measured.chunks.reads.ns, evidence.window).sum())
    rate = chunks / evidence.window.length_s
    if rate > _MAX_PACE_RATIO * error.chunks_per_s:
        yield warning(
            FindingCode.UNCALIBRATED_PACE, calibrated_chunks_per_s=error.chunks_per_s, trial_chunks_per_s=rate
        )
