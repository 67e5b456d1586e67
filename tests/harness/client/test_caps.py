"""A cap on what is in flight against a simulated queue, in virtual time: the waits inside the client all show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Driver
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.plan import wire_sessions
from bakeoff.harness.host.clock import LoopClock, run_virtual
from tests.harness.queueing import simulated_ttfts_s
from tests.harness.samples import FINISH, TOKEN, MemoryRecorder, opened

S = 1_000_000_000
STALL = (20.0, 25.0)
SERVICE_S = 0.015


def ttfts_s(offsets_s: list[float], cap: int) -> list[float]:
    recorder = MemoryRecorder()

    async def run() -> None:
        transport = ScriptedTransport([(SERVICE_S, TOKEN + FINISH)], pauses=[STALL])
        driver = Driver(transport, clock=LoopClock(), recorder=recorder, timeout_s=99)
        sessions = wire_sessions(opened(offsets_s), ReferenceDialect(), "m")
        await driver.open_loop(sessions, duration_s=60, max_in_flight=cap)
        assert transport.max_in_flight <= cap

    run_virtual(run())
    records = sorted(recorder.records, key=lambda record: record.index)
    return [(record.read_ns[0] - record.planned_ns) / S for record in records]


@pytest.mark.parametrize("cap", [1, 2, 4, 8, 16, 32, 64])
def test_a_stall_of_5_s_is_seen_as_a_queue_would_see_it(cap: int):
    offsets_s = [i / 50 for i in range(3000)]
    true = simulated_ttfts_s(offsets_s, cap=cap, ttft_s=SERVICE_S, total_s=SERVICE_S, stall=STALL)
    assert ttfts_s(offsets_s, cap) == pytest.approx(true, abs=1e-6)


@given(
    gaps_ms=st.lists(st.integers(0, 40), min_size=1, max_size=200),
    cap=st.integers(1, 5),
)
def test_any_arrivals_under_any_cap_are_timed_from_their_plan(gaps_ms: list[int], cap: int):
    offsets_s, now_s = [], 19.5
    for gap_ms in gaps_ms:
        now_s += gap_ms / 1000 + 0.000_3  # off the millisecond grid of the script: no ties with ends
        offsets_s.append(now_s)
    true = simulated_ttfts_s(offsets_s, cap=cap, ttft_s=SERVICE_S, total_s=SERVICE_S, stall=STALL)
    assert ttfts_s(offsets_s, cap) == pytest.approx(true, abs=1e-5)
