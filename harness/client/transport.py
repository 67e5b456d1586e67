"""HTTP/1.1 straight on an asyncio protocol: each read is stamped before anything else looks at it.

Nothing on this path parses JSON, splits events, tokenises or logs: a read costs a clock read, the HTTP framing
(httptools, in C) and two appends. What the bytes mean is decided after the trial (:mod:`harness.client.decode`).
"""

import asyncio
import contextlib
import ssl
import time
import urllib.parse
from typing import Protocol, cast

import httptools

from engines.dialects import HttpRequest

MAX_IDLE_S = 2.0
"""An idle connection older than this is not used again: servers close theirs after 5 s or more, and a request sent
into a closing connection would look like a failure of the engine."""


class StreamLog:
    """What one exchange left behind; filled by a transport, read by the recorder."""

    __slots__ = ("detail", "end", "ended_ns", "read_ns", "reads", "sent_ns", "status")

    def __init__(self) -> None:
        self.sent_ns: int | None = None
        self.status: int | None = None
        self.read_ns: list[int] = []
        self.reads: list[bytes] = []
        self.ended_ns: int = 0
        self.end: str = "cancelled"
        """``complete``, ``refused``, ``reset``, ``timeout`` or ``cancelled``."""
        self.detail: str | None = None


class Transport(Protocol):
    """Sends one request and logs its answer. A fake for tests is :class:`harness.client.fake.ScriptedTransport`."""

    async def exchange(self, request: HttpRequest, log: StreamLog, timeout_s: float) -> None:
        """Fill ``log``; failures are logged, not raised. Only cancellation passes through."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class HttpTransport:
    """Keep-alive connections to one origin, as many as there are requests in flight. Proxies are not used.

    Args:
        base_url: ``http://host:port`` or ``https://host``, with an optional path prefix.
    """

    def __init__(self, base_url: str) -> None:
        parts = urllib.parse.urlsplit(base_url)
        assert parts.hostname is not None, f"no host in {base_url}"
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._host_header = parts.netloc.rpartition("@")[2]
        self._idle: list[_Connection] = []

    async def exchange(self, request: HttpRequest, log: StreamLog, timeout_s: float) -> None:
        """See :class:`Transport`."""
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connection()
                await connection.exchange(self._head(request) + request.body, log)
        except TimeoutError:
            log.end, log.detail = "timeout", f"no end within {timeout_s:g} s"
        except OSError as error:
            log.end, log.detail = "refused", str(error)
        finally:
            if log.ended_ns == 0:
                log.ended_ns = time.monotonic_ns()
            self._release(connection)

    async def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _connection(self) -> "_Connection":
        oldest = time.monotonic_ns() - int(MAX_IDLE_S * 1e9)
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.free_since_ns > oldest:
                return connection
            connection.abort()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return connection

    def _release(self, connection: "_Connection | None") -> None:
        if connection is None:
            return
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.abort()

    def _head(self, request: HttpRequest) -> bytes:
        lines = [f"POST {self._prefix}{request.path} HTTP/1.1", f"host: {self._host_header}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        lines += [f"content-length: {len(request.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1")


class _Connection(asyncio.Protocol):
    """One TCP connection, one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._log: StreamLog | None = None
        self._done: asyncio.Future[None] | None = None
        self._now_ns = 0
        self._framed = False
        self._headers_done = False
        self.reusable = False
        self.free_since_ns = 0

    async def exchange(self, data: bytes, log: StreamLog) -> None:
        """Send ``data`` and log reads until the answer is whole or the connection ends."""
        assert self._transport is not None
        self._log, self._done = log, asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._framed = self._headers_done = self.reusable = False
        log.sent_ns = time.monotonic_ns()
        self._transport.write(data)
        try:
            await self._done
        finally:
            self._log = self._parser = None  # after a timeout or a cancel, what still comes is nobody's

    def abort(self) -> None:
        """Drop the connection; harmless when it is gone."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        if self._parser is None:
            return  # bytes after the answer's end: the server broke the protocol, the connection is not used again
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish("reset", f"not HTTP/1.1: {error}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._now_ns = time.monotonic_ns()
        self.reusable = False
        if self._headers_done and not self._framed and exc is None:
            self._finish("complete", None)  # an answer without length ends with its connection
        else:
            self._finish("reset", str(exc) if exc else "the server closed the connection before the answer was whole")

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002  (httptools names it)
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._framed = True

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        assert self._log is not None
        self._headers_done = True
        self._log.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        log = self._log
        if log is not None:
            log.read_ns.append(self._now_ns)
            log.reads.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.reusable = self._framed and self._parser.should_keep_alive()
        self.free_since_ns = self._now_ns
        self._finish("complete", None)

    def _finish(self, end: str, detail: str | None) -> None:
        if self._log is None or self._done is None:
            return
        self._log.end, self._log.detail, self._log.ended_ns = end, detail, self._now_ns
        with contextlib.suppress(asyncio.InvalidStateError):  # the waiter timed out or was cancelled first
            self._done.set_result(None)
