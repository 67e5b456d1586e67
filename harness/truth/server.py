"""The truth server: raw HTTP on an asyncio protocol, every chunk written at its due time by one pump.

The pump spins for the last 1.5 ms before each due time, so it wants a core of its own.
"""

import asyncio
import contextlib
import heapq
import itertools
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import httptools
import msgspec

from harness.clock import MonotonicClock
from harness.truth.schedule import Schedule

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Answered(msgspec.Struct):
    """What really happened to one answer.

    Attributes:
        start_ns: when its request was complete.
        written_ns: when each token-bearing chunk was handed to the socket.
        tokens: how many tokens it carried in all.
    """

    start_ns: int
    tokens: int
    written_ns: list[int] = []


class TruthServer:
    """Serves one schedule.

    Args:
        schedule: timetable of every answer.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.answered: list[Answered] = []
        self._clock = MonotonicClock()
        self._due: list[tuple[int, int, _Answer]] = []
        self._order = itertools.count()
        self._more = asyncio.Event()

    async def run(self, port: int, ready: asyncio.Event) -> None:
        """Listen on 127.0.0.1 and pump until cancelled."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)
        ready.set()
        async with server:
            await self._pump()

    def answer(self, transport: asyncio.Transport, body: bytes, start_ns: int) -> None:
        """Put an answer on the timetable; it holds one place there, for its next chunk."""
        tokens = int(json.loads(body).get("max_tokens", 16))
        log = Answered(start_ns, tokens)
        self.answered.append(log)
        answer = _Answer(transport, iter(self.schedule.chunks(tokens)), log)
        heapq.heappush(self._due, (self.schedule.due_ns(start_ns, 0), next(self._order), answer))
        self._more.set()

    async def _pump(self) -> None:
        while True:
            if not self._due:
                self._more.clear()
                await self._more.wait()
            await self._clock.sleep_until_ns(self._due[0][0])
            while self._due and self._due[0][0] <= self._clock.now_ns():
                self._write(heapq.heappop(self._due)[2])

    def _write(self, answer: "_Answer") -> None:
        """Write the next chunk; usage and end follow the last token at once."""
        if answer.transport.is_closing():
            return
        log = answer.log
        number = len(log.written_ns)
        chunk = next(answer.chunks)
        answer.transport.write(chunk if number else _HEAD + chunk)
        log.written_ns.append(self._clock.now_ns())
        if (number + 1) * self.schedule.tokens_per_chunk >= log.tokens:
            answer.transport.write(next(answer.chunks))
            return
        due_ns = self.schedule.due_ns(log.start_ns, number + 1)
        heapq.heappush(self._due, (due_ns, next(self._order), answer))


class _Answer(msgspec.Struct):
    """An answer under way."""

    transport: asyncio.Transport
    chunks: Iterator[bytes]
    log: Answered


class _Connection(asyncio.Protocol):
    """Reads requests; POST is answered on schedule, anything else at once."""

    def __init__(self, server: TruthServer) -> None:
        self._server = server
        self._body = bytearray()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._now_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._transport is not None
        if self._parser.get_method() == b"POST":
            self._server.answer(self._transport, bytes(self._body), self._now_ns)
        else:
            self._transport.write(_PLAIN)
        self._body.clear()


@contextlib.asynccontextmanager
async def truth_process(schedule: Schedule, port: int, *, core: int | None = None) -> AsyncGenerator["Truth"]:
    """The server in a process of its own, optionally with a core of its own; ends with the block.

    Yields:
        a handle whose :meth:`Truth.answered` fetches the true times.
    """
    order: dict[str, Any] = {"schedule": msgspec.to_builtins(schedule), "port": port, "core": core}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "harness.truth", json.dumps(order),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield Truth(process)
    finally:
        process.stdin.close()
        await process.wait()


class Truth:
    """A running truth process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answered(self) -> list[Answered]:
        """What has been answered so far, with the true times."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"answered\n")
        await self._process.stdin.drain()
        return msgspec.json.decode(await self._process.stdout.readline(), type=list[Answered])
