"""A bare asyncio client, the reference of ``benchmarks/client/cpu.py``: it stamps each read and keeps the bytes.

``python -m benchmarks.peers.drivers.bare PORT STREAMS REQUESTS TOKENS FILE`` keeps STREAMS requests in flight and
writes, as JSON, when each was sent and when each of its tokens arrived. Nothing is parsed before the load is over; the
end of an answer is the end of its last read.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

_END = b"0\r\n\r\n"
_EVENT = b"data: {"


class _Stream(asyncio.Protocol):
    """One connection: one request after another while there are any."""

    def __init__(self, load: "_Load") -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._reads: list[tuple[int, bytes]] = []
        self.sent_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it
        self._send()

    def data_received(self, data: bytes) -> None:
        self._reads.append((time.monotonic_ns(), data))
        if data.endswith(_END):
            self._load.answers.append((self.sent_ns, self._reads))
            self._reads = []
            self._send()

    def _send(self) -> None:
        assert self._transport is not None
        if not self._load.left:
            self._transport.close()
            self._load.ended()
            return
        self._load.left -= 1
        self.sent_ns = time.monotonic_ns()
        self._transport.write(self._load.request)


class _Load:
    """State that all streams share."""

    def __init__(self, streams: int, requests: int, tokens: int) -> None:
        body = {"model": "truth", "prompt": "a " * 64, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: truth\r\ncontent-length: {len(data)}\r\n\r\n"
        self.request = head.encode() + data
        self.left = requests
        self.answers: list[tuple[int, list[tuple[int, bytes]]]] = []
        self._streams = streams
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ended(self) -> None:
        """Count a stream that has nothing more to send."""
        self._streams -= 1
        if not self._streams:
            self.finished.set_result(None)


async def drive(port: int, streams: int, requests: int, tokens: int) -> list[tuple[int, list[int]]]:
    """Send the load; returns the time of each request and of its tokens."""
    loop, load = asyncio.get_running_loop(), _Load(streams, requests, tokens)
    for number in range(streams):
        await loop.create_connection(lambda: _Stream(load), "127.0.0.1", port)
        if number % 4 == 3:  # four each millisecond, as our own closed loop starts
            await asyncio.sleep(0.001)
    await load.finished
    return [
        (sent_ns, [t_ns for t_ns, data in reads for _ in range(data.count(_EVENT))][:tokens])
        for sent_ns, reads in load.answers
    ]


def main() -> None:
    port, streams, requests, tokens, file = sys.argv[1:]
    Path(file).write_text(json.dumps(uvloop.run(drive(int(port), int(streams), int(requests), int(tokens)))))


if __name__ == "__main__":
    main()
