"""Open loops keep their schedule, and a cap on requests hides no latency.

Part one sends 50, 200 and 1000 requests per second to a truth server. Part two sends 50 per second for 60 s to a server
that stalls for 5 s, under caps from 1 to 64 at the same time (a server and a client each), and compares the 99th
percentile of TTFT, from the plan, with a simulated queue.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bakeoff.engines import pick_port
from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Open, decode_stream, local_fleet
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.client.wire.plan import WireSession, wire_sessions
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.metrics import latency
from bakeoff.results.records import Load, RequestRecord, Window
from bakeoff.results.text.findings import sentences
from bakeoff.workloads import PlannedSession, Poisson, Session, Turn
from benchmarks.bars import Bars
from tests.harness.queueing import simulated_ttfts_s

RATES = {50: 40.0, 200: 20.0, 1000: 10.0}
"""Requests per second, and duration in seconds."""
CAPS = (1, 2, 4, 8, 16, 32, 64)
TTFT_S, ITL_S, TOKENS = 0.01, 0.005, 2
STALL_S, RATE, DURATION_S = (20.0, 5.0), 50.0, 60.0


def sessions(offsets_s: Sequence[float]) -> Iterator[WireSession]:
    turn = Turn(1, TOKENS, prompt="a")
    return wire_sessions(
        (PlannedSession(Session(str(i), (turn,)), offset) for i, offset in enumerate(offsets_s)),
        ReferenceDialect(), "truth",
    )  # fmt: skip


async def load(
    schedule: Schedule, offsets_s: Sequence[float], share: Open, *, alone: bool = False
) -> list[RequestRecord]:
    """Run server and client, each on its own core if they are ``alone`` and there are two cores."""
    port = pick_port()
    pinned = alone and (os.cpu_count() or 1) > 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = TrialFolder(Path(scratch))
        async with (
            truth_process(schedule, port, core=0 if pinned else None),
            local_fleet(1, [1] if pinned else []) as fleet,
        ):
            await fleet.load(LoadOrder((Target(f"http://127.0.0.1:{port}"),), share, 60.0), sessions(offsets_s), folder)
        return [decode_stream(stream, ReferenceDialect(), None) for stream in folder.read_streams()]


def kept_schedule(rate: int, duration_s: float, bars: Bars) -> None:
    """Check that the schedule is kept, or that the verdict reports that it is not."""
    offsets = list(_until(Poisson(rate).offsets_s("2"), duration_s))
    requests = asyncio.run(load(Schedule(ttft_s=TTFT_S, itl_s=ITL_S), offsets, Open(duration_s), alone=True))
    sent = sorted(r.sent_ns for r in requests if r.sent_ns is not None)
    achieved = (offsets[-1] - offsets[0]) / ((sent[-1] - sent[0]) / 1e9)
    lag_ms = float(np.quantile([latency.send_lag_s(r) * 1e3 for r in requests], 0.99))
    window = Window(min(r.planned_ns for r in requests), max(r.planned_ns for r in requests))
    _, findings = judge(Evidence(requests, [], Load(rate_per_s=rate, arrival="poisson"), window, 0.01))
    is_reported = any(finding.code in {FindingCode.CLIENT_LATE, FindingCode.CLIENT_OFF_RATE} for finding in findings)
    findings_text = sentences(findings) or "kept"
    print(f"{rate:5} req/s: {len(requests)} sent at {achieved:.3%} of plan, lag p99 {lag_ms:.3f} ms, {findings_text}")
    is_kept = abs(achieved - 1) <= 0.005 and lag_ms <= 5
    bars.add(f"schedule_kept_or_called_saturated_{rate}", int(is_kept or is_reported), "==", 1)
    if is_kept:
        bars.add(f"send_rate_error_pct_{rate}", abs(achieved - 1) * 100, "<=", 0.5)
        bars.add(f"send_lag_p99_ms_{rate}", lag_ms, "<=", 5)


async def stalled() -> dict[int, tuple[float, float]]:
    """p99 TTFT in seconds under each cap: measured and simulated."""
    offsets = [i / RATE for i in range(int(RATE * DURATION_S))]
    schedule = Schedule(ttft_s=TTFT_S, itl_s=ITL_S, stalls=(STALL_S,))
    runs = await asyncio.gather(*(load(schedule, offsets, Open(DURATION_S, cap)) for cap in CAPS))
    p99_by_cap = {}
    for cap, requests in zip(CAPS, runs, strict=True):
        simulated = simulated_ttfts_s(
            offsets, cap=cap, ttft_s=TTFT_S, total_s=TTFT_S + ITL_S, stall=(STALL_S[0], sum(STALL_S))
        )
        measured = [latency.ttft_s(request) for request in requests]
        assert len(measured) == len(simulated)
        p99_by_cap[cap] = float(np.quantile(measured, 0.99)), float(np.quantile(simulated, 0.99))
    return p99_by_cap


def _until(offsets_s: Iterator[float], end_s: float) -> Iterator[float]:
    for offset_s in offsets_s:
        if offset_s >= end_s:
            return
        yield offset_s


def main() -> None:
    bars = Bars()
    for rate, duration_s in RATES.items():
        kept_schedule(rate, duration_s, bars)
    for cap, (measured_s, true_s) in asyncio.run(stalled()).items():
        print(f"stall, at most {cap:2} in flight: TTFT p99 {measured_s:.3f} s, simulated {true_s:.3f} s")
        bars.add(f"stall_p99_error_pct_cap_{cap}", abs(measured_s / true_s - 1) * 100, "<=", 2)
    bars.finish()


if __name__ == "__main__":
    main()
