"""The truth server, and the measuring client against it (the bar itself is ``make bench-client``)."""

import asyncio
import statistics

import uvloop

from engines import pick_port
from engines.dialects import ReferenceDialect
from harness.client import Driver, HttpTransport, decode_stream
from harness.clock import MonotonicClock
from harness.truth import Schedule, truth_process
from harness.truth.server import Answered
from results.metrics import latency
from results.records import Outcome, RequestRecord, StreamRecord
from workloads import PlannedSession, Session, Turn


def test_a_schedule_is_exact_and_covers_every_token():
    schedule = Schedule(ttft_s=0.5, itl_s=0.25, tokens_per_chunk=4)
    assert [schedule.due_ns(1_000, chunk) for chunk in (0, 1, 2)] == [500_001_000, 750_001_000, 1_000_001_000]
    *bearing, end = schedule.chunks(10)
    assert [piece.count(b" a") for piece in bearing] == [4, 4, 2]
    assert b'"token_ids":[8,9]' in bearing[-1]
    assert end.endswith(b"0\r\n\r\n")
    assert b'"completion_tokens":10' in end


def measured(schedule: Schedule, streams: int, tokens: int) -> tuple[list[RequestRecord], list[Answered]]:
    """Drive the truth server once; returns what the client says and what really happened."""
    records: list[StreamRecord] = []
    dialect = ReferenceDialect()

    async def scene() -> list[Answered]:
        port = pick_port()
        async with truth_process(schedule, port) as truth:
            transport = HttpTransport(f"http://127.0.0.1:{port}")
            driver = Driver(transport, dialect, "m", clock=MonotonicClock(), record=records.append, timeout_s=20)
            plan = [PlannedSession(Session(str(i), (Turn(1, tokens, prompt="a"),)), None) for i in range(streams)]
            await driver.closed_loop(plan, streams, duration_s=20, minimum=0)
            await transport.close()
            return await truth.answered()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answered = runner.run(scene())
    return [decode_stream(record, dialect, None) for record in records], answered


def test_the_client_sees_what_the_server_did():
    requests, answered = measured(Schedule(0.05, 0.01), streams=64, tokens=30)
    assert [request.outcome for request in requests] == [Outcome.OK] * 64
    assert all(request.chunk_tokens == [1] * 30 for request in requests)
    assert len(answered) == 64
    true_itl = statistics.median(
        (b - a) / 1e9 for answer in answered for a, b in zip(answer.written_ns, answer.written_ns[1:], strict=False)
    )
    assert abs(statistics.median(latency.itl_s(requests)) - true_itl) < 0.002
    assert statistics.median(latency.ttft_s(request) or 0 for request in requests) < 0.1


def test_tokens_of_a_chunk_are_counted_not_chunks():
    requests, _ = measured(Schedule(0.01, 0.01, tokens_per_chunk=8), streams=2, tokens=20)
    assert [request.chunk_tokens for request in requests] == [[8, 8, 4]] * 2
    assert all(request.output_tokens == 20 for request in requests)
