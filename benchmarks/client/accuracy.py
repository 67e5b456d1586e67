"""Bar 5: the measuring client against a server of known schedule. Run by ``make bench-client``.

64 streams at TTFT 50 ms and ITL 10 ms, three rounds, medians; client and server each on a core of its own.
"""

import asyncio
import os
import statistics

import uvloop

from benchmarks.bars import Bars
from engines import pick_port
from engines.dialects import ReferenceDialect
from harness.client import Driver, HttpTransport, decode_stream
from harness.clock import MonotonicClock
from harness.realtime import claim_core
from harness.truth import Schedule, truth_process
from results.metrics import latency
from results.records import Outcome, RequestRecord, StreamRecord
from workloads import PlannedSession, Session, Turn

STREAMS, TOKENS, ROUNDS = 64, 100, 3
SCHEDULE = Schedule(ttft_s=0.05, itl_s=0.01)


async def one_round() -> list[RequestRecord]:
    port = pick_port()
    streams: list[StreamRecord] = []
    dialect = ReferenceDialect()
    async with truth_process(SCHEDULE, port, core=1 % (os.cpu_count() or 1)):
        transport = HttpTransport(f"http://127.0.0.1:{port}")
        driver = Driver(transport, dialect, "truth", clock=MonotonicClock(), record=streams.append, timeout_s=30)
        sessions = [PlannedSession(Session(f"s{i}", (Turn(1, TOKENS, prompt="a"),)), None) for i in range(2 * STREAMS)]
        await driver.warm_up(sessions[:STREAMS], STREAMS)
        streams.clear()
        await driver.closed_loop(sessions, STREAMS, duration_s=60, minimum=0)
        await transport.close()
    return [decode_stream(stream, dialect, None) for stream in streams]


def main() -> None:
    realtime = claim_core(0, realtime=True)
    print(f"{STREAMS} streams, {TOKENS} tokens each; real-time priority: {realtime}")
    ttft_errors, itl_errors, wrong = [], [], 0
    for number in range(ROUNDS):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            requests = runner.run(one_round())
        wrong += sum(r.outcome is not Outcome.OK or r.chunk_tokens != [1] * TOKENS for r in requests)
        wrong += 2 * STREAMS - len(requests)
        ttft_ms = statistics.median(latency.ttft_s(r) for r in requests) * 1e3
        itl_ms = statistics.median(latency.itl_s(requests)) * 1e3
        print(f"round {number + 1}: TTFT p50 {ttft_ms:.3f} ms, ITL p50 {itl_ms:.3f} ms, {len(requests)} answers")
        ttft_errors.append(abs(ttft_ms - SCHEDULE.ttft_s * 1e3))
        itl_errors.append(abs(itl_ms - SCHEDULE.itl_s * 1e3))
    bars = Bars()
    bars.add("ttft_p50_error_ms", statistics.median(ttft_errors), "<=", 1.0)
    bars.add("itl_p50_error_ms", statistics.median(itl_errors), "<=", 0.5)
    bars.add("answers_with_wrong_token_count", wrong, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
