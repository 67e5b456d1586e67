"""Accuracy and throughput of the truth server on its own core, from its own record. Run by ``make bench-truth``.

A client on the other core reads the answers. Bars are medians of five rounds.
"""

import asyncio
import json
import os
import select
import socket
import statistics
import time

from bakeoff.harness.host.realtime import claim_core, raise_priority
from bakeoff.harness.truth import Answered, Schedule, truth_process
from bakeoff.harness.truth.record import lateness_s
from benchmarks.bars import Bars

ROUNDS = 5
FAST_STREAMS, FAST_TOKENS = 64, 4000
MANY_STREAMS, MANY_TOKENS = 512, 100
MANY = Schedule(ttft_s=0.1, itl_s=0.02)


def read_all(port: int, streams: int, tokens: int, spread_s: float) -> None:
    """Send ``streams`` requests, spread evenly over ``spread_s``, and read every reply to its end."""
    body = json.dumps({"prompt": "a", "max_tokens": tokens, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: truth\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        sockets[connection.fileno()] = connection
        poll.register(connection.fileno(), select.EPOLLIN)
    start_s = time.monotonic()
    for i, connection in enumerate(sockets.values()):
        while time.monotonic() < start_s + spread_s * i / streams:
            pass
        connection.send(head + body)
    buffer = bytearray(1 << 18)
    while sockets:
        for fd, _ in poll.poll():
            count = sockets[fd].recv_into(buffer)
            if not count or buffer[count - 5 : count] == b"0\r\n\r\n":
                poll.unregister(fd)
                sockets.pop(fd).close()


async def record_of(schedule: Schedule, streams: int, tokens: int) -> list[Answered]:
    async with truth_process(schedule, core=1 % (os.cpu_count() or 1)) as truth:
        await asyncio.to_thread(read_all, truth.port, streams, tokens, schedule.itl_s)
        return await truth.answered()


def writes_per_s(answers: list[Answered]) -> float:
    first_ns = min(answer.written_ns[0] for answer in answers)
    last_ns = max(answer.written_ns[-1] for answer in answers)
    return sum(len(answer.written_ns) for answer in answers) / ((last_ns - first_ns) / 1e9)


def main() -> None:
    claim_core(0)
    print(f"real-time priority: {raise_priority()}")
    rates, late_ms = [], []
    for number in range(ROUNDS):
        rates.append(writes_per_s(asyncio.run(record_of(Schedule(0.2, 0), FAST_STREAMS, FAST_TOKENS))))
        late = sorted(lateness_s(asyncio.run(record_of(MANY, MANY_STREAMS, MANY_TOKENS)), MANY))
        late_ms.append(late[len(late) * 99 // 100] * 1e3)
        p50_us, p99_us, most_us = late[len(late) // 2] * 1e6, late_ms[-1] * 1e3, late[-1] * 1e6
        print(f"round {number + 1}: {rates[-1]:,.0f} writes/s; {MANY_STREAMS} streams x 20 ms", end=" ")
        print(f"late by p50 {p50_us:.0f} us, p99 {p99_us:.0f} us, at most {most_us:.0f} us")
    bars = Bars()
    bars.add("writes_per_s", statistics.median(rates), ">=", 250_000)
    bars.add("late_p99_ms", statistics.median(late_ms), "<=", 0.1)
    bars.finish()


if __name__ == "__main__":
    main()
