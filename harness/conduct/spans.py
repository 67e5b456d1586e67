"""Receives the spans that an engine exports: OpenTelemetry's protocol over HTTP, on the loopback interface.

A body is stored as it arrived, with its time; :mod:`bakeoff.results.log.spans` decodes it after the trial. Engines
stamp spans with the wall clock, so its difference to the monotonic clock is stored once a second.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from aiohttp import web

from bakeoff.results.errors import NotWritable
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.spans import ClockReading, SpanBatch

PATH = "/v1/traces"
TYPE = "application/x-protobuf"
STANDARD_PORT = 4318
"""Port of OTLP over HTTP, on which spans of a running server are received."""
_MAX_BODY_BYTES = 64 * 2**20
"""Limit of an unpacked body; an exporter sends 512 spans at a time, about a megabyte."""
_READING_S = 1.0
_TRIES = 5
_CLOSE_S = 0.1
"""Time for a request in progress when the receiver closes."""

ReadClocks = Callable[[], ClockReading]


def read_clocks(
    monotonic_ns: Callable[[], int] = time.monotonic_ns, wall_ns: Callable[[], int] = time.time_ns
) -> ClockReading:
    """Read both clocks; of several tries, return the one whose two monotonic readings are closest together."""
    tries = [(monotonic_ns(), wall_ns(), monotonic_ns()) for _ in range(_TRIES)]
    before_ns, wall, after_ns = min(tries, key=lambda times: times[2] - times[0])
    t_ns = (before_ns + after_ns) // 2
    return ClockReading(t_ns, wall - t_ns)


class SpanReceiver:
    """An HTTP server for export requests. Outside a recording it accepts and discards them.

    Args:
        clocks: reads both clocks.

    Attributes:
        endpoint: address for exporters; empty until it listens.
        batches: export requests that were recorded since the last start.
        failure: why the record is incomplete; None if it is not.
    """

    def __init__(self, clocks: ReadClocks = read_clocks) -> None:
        self._clocks = clocks
        self._log: FrameAppender | None = None
        self._readings: asyncio.Task[None] | None = None
        self.endpoint = ""
        self.batches: int = 0
        self.failure: str | None = None

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post(PATH, self._export)
        return app

    def start(self, path: Path) -> None:
        """Record into a file from now on."""
        self.batches, self.failure = 0, None
        self._log = FrameAppender(path)
        self._readings = asyncio.ensure_future(self._read_on())

    async def stop(self) -> None:
        """End the recording, if there is one."""
        log, self._log, readings, self._readings = self._log, None, self._readings, None
        if log is None or readings is None:
            return
        readings.cancel()
        await asyncio.gather(readings, return_exceptions=True)
        try:
            log.append(self._clocks())
            log.close()
        except NotWritable as error:
            self.failure = str(error)

    async def _read_on(self) -> None:
        while self._log:
            self._write(self._clocks())
            await asyncio.sleep(_READING_S)

    def _write(self, record: ClockReading | SpanBatch) -> None:
        if self._log is None:
            return
        try:
            self._log.append(record)
            self._log.flush()
        except NotWritable as error:
            self.failure = str(error)

    async def _export(self, request: web.Request) -> web.Response:
        if request.content_type != TYPE:
            raise web.HTTPUnsupportedMediaType(
                text=f"send {TYPE}: set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"
            )
        body = await request.read()  # aiohttp unpacks gzip and deflate, and bounds the unpacked size
        if self._log:
            self.batches += 1
            self._write(SpanBatch(self._clocks().t_ns, body))
        return web.Response(content_type=TYPE)


@contextlib.asynccontextmanager
async def receiving(port: int = 0) -> AsyncGenerator[SpanReceiver]:
    """Listen on 127.0.0.1 until the end of the block.

    Args:
        port: to listen on; 0 for any that is free.

    Raises:
        OSError: the port is taken.
    """
    receiver = SpanReceiver()
    runner = web.AppRunner(receiver.app(), access_log=None, shutdown_timeout=_CLOSE_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        receiver.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
        yield receiver
    finally:
        await receiver.stop()
        await runner.cleanup()
