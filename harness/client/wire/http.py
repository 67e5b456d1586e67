"""HTTP/1.1 directly on an asyncio protocol: each read is stamped before anything else looks at it.

Nothing on this path parses JSON, splits events, tokenises or logs: a read costs a clock read, the HTTP framing
(httptools, in C) and two appends. The bytes are decoded after the trial (:mod:`bakeoff.harness.client.decode`).

A request goes to the kernel in the call that stamps it: uvloop's ``transport.write`` would keep it until the end of the
loop's iteration, behind the reads of all other streams. TLS goes through the transport, which encrypts.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Sequence
from typing import cast

import httptools

from bakeoff.engines import Access
from bakeoff.engines.addresses import ReplicaHeader
from bakeoff.engines.dialects import HttpRequest
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.server import reason_of
from bakeoff.harness.client.wire.moderator import Moderator
from bakeoff.harness.client.wire.pool import Pool
from bakeoff.harness.client.wire.transport import CONNECT_S, Ended, StreamLog
from bakeoff.results.records import StreamEnd

CLOSING_NS = 250_000_000
"""A used connection that ends without a byte this soon was being closed when the request came."""
LEFT_OPEN_S = 0.25
"""Time after a stream's end mark in which the server may end its response; the client waits no longer for it."""
_END_MARKS = tuple(
    b"data:" + space + b"[DONE]" + end for space in (b" ", b"") for end in (b"\n\n", b"\r\n\r\n", b"\n", b"")
)
_Addresses = Sequence[tuple[socket.AddressFamily, tuple[object, ...]]]


class HttpTransport:
    """Keep-alive connections to one origin, as many as there are requests in flight. Proxies are not used.

    Args:
        base_url: ``http://host:port`` or ``https://host``, with an optional path prefix. Certificates are checked
            against the system's authorities, or those that ``SSL_CERT_FILE`` names.
        access: credentials for every request.
        replica_header: where answers name the replica behind a router.
        connect_s: limit for opening one connection, TLS included.
    """

    def __init__(
        self,
        base_url: str,
        access: Access = Access(),  # noqa: B008
        replica_header: ReplicaHeader | None = None,
        *,
        connect_s: float = CONNECT_S,
    ) -> None:
        self._connect_s = connect_s
        self._access = access
        self.replica_header = replica_header
        address = endpoint(base_url)
        self._host, self._port = address.host, address.port
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._prefix = address.path.rstrip("/")
        self._host_header = address.authority
        self.moderator: Moderator = Moderator()
        self._addresses: _Addresses = ()
        self._pool = Pool(self._connect)
        self._carrying: dict[StreamLog, Connection | asyncio.Task[None]] = {}

    async def open(self, connections: int, *, growing: bool = False) -> None:
        await self._pool.fill(connections, growing=growing)

    def prepare(self, request: HttpRequest, conversation: str = "") -> bytes:  # noqa: ARG002
        """The bytes of the request."""
        path = f"{self._prefix}{self._access.path(request.path)}"
        lines = [f"POST {path} HTTP/1.1", f"host: {self._host_header}"]
        lines += [f"{name}: {value}" for name, value in (request.headers | self._access.headers).items()]
        lines += [f"content-length: {len(request.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + request.body

    def start(self, prepared: bytes, log: StreamLog, ended: Ended) -> None:
        connection = self._pool.take()
        if connection is None:
            self._carrying[log] = asyncio.get_running_loop().create_task(self._dial(prepared, log, ended))
            return
        self._carrying[log] = connection
        connection.exchange(prepared, log, ended)

    def drop(self, log: StreamLog) -> None:
        carrier = self._carrying.pop(log, None)
        if isinstance(carrier, Connection):
            carrier.abandon()
            self._pool.give_back(carrier)
        elif carrier is not None:
            carrier.cancel()

    async def close(self) -> None:
        """Close every connection."""
        for log in list(self._carrying):
            self.drop(log)
        self._pool.close()

    def release(self, connection: "Connection", log: StreamLog) -> None:
        """Take back a connection whose exchange has ended; keep it if it can carry another."""
        self._carrying.pop(log, None)
        self._pool.give_back(connection)

    def resend(self, connection: "Connection", prepared: bytes, log: StreamLog, ended: Ended) -> None:
        """Send a request again that a used connection took to its end, on a new one."""
        log.is_resent = True
        self._pool.give_back(connection)
        self._carrying[log] = asyncio.get_running_loop().create_task(self._dial(prepared, log, ended))

    async def _dial(self, prepared: bytes, log: StreamLog, ended: Ended) -> None:
        """Send on a new connection; a request that is sent again was sent before this dial, which delays no send."""
        if not log.is_resent:
            log.dial_start_ns = time.monotonic_ns()
        try:
            connection = await self._pool.opened()
        except OSError as error:
            log.end = StreamEnd.RESET if log.is_resent else StreamEnd.REFUSED
            log.detail, log.ended_ns = reason_of(error), time.monotonic_ns()
            self._carrying.pop(log, None)
            ended(log)
            return
        if not log.is_resent:
            log.dial_end_ns = time.monotonic_ns()
        self._carrying[log] = connection
        connection.exchange(prepared, log, ended)

    async def _connect(self) -> "Connection":
        """Open a connection within the limit."""
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connect_to_any()
        except TimeoutError as error:  # a listener that accepts nothing, or TLS that never ends
            raise OSError(f"no connection within {self._connect_s:g} s") from error

    async def _connect_to_any(self) -> "Connection":
        """Open a connection to the first address that accepts; addresses are looked up again only when all fail."""
        loop = self.moderator.loop = asyncio.get_running_loop()
        if not self._addresses:
            infos = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = [(family, address) for family, _, _, _, address in infos]
        refusal = OSError(f"{self._host} has no address")
        for family, address in self._addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
                return await self._on(sock)
            except OSError as error:
                refusal = error
                sock.close()
            except asyncio.CancelledError:
                sock.close()
                raise
        self._addresses = ()
        raise refusal

    async def _on(self, sock: socket.socket) -> "Connection":
        """Put the protocol on a connected socket; under TLS it may not send past the transport."""
        loop, direct = asyncio.get_running_loop(), None if self._tls else sock
        host = self._host if self._tls else None
        _, connection = await loop.create_connection(
            lambda: Connection(self, direct), sock=sock, ssl=self._tls, server_hostname=host
        )
        return connection


class Connection(asyncio.Protocol):
    """One TCP connection, one exchange at a time.

    Args:
        owner: takes the connection back.
        sock: to send on directly; None if bytes must go through the transport (TLS).
    """

    def __init__(self, owner: HttpTransport, sock: socket.socket | None) -> None:
        self._owner = owner
        self._count = owner.moderator.count
        self._replica_header = owner.replica_header
        self._replica_name = owner.replica_header.name.encode() if owner.replica_header else None
        self._sock = sock
        self._transport: asyncio.Transport | None = None
        self._log: StreamLog | None = None
        self._ended: Ended | None = None
        self._data = b""
        self._is_used = False
        self._now_ns = 0
        self._bodies: list[bytes] = []
        self.on_body = self._bodies.append  # httptools calls it for every chunk: no Python frame in between
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._framed = self._headers_done = self._whole = False
        self._location: str | None = None
        self.reusable: bool = True
        self.free_since_ns: int = time.monotonic_ns()

    def exchange(self, data: bytes, log: StreamLog, ended: Ended) -> None:
        """Send ``data`` and log reads until the response is complete or the connection ends."""
        assert self._transport is not None
        self._log, self._ended, self._data = log, ended, data
        self._framed = self._headers_done = self._whole = self.reusable = False
        self._location = None
        if log.sent_ns is None:
            log.sent_ns = time.monotonic_ns()
        if self._sock is None:
            self._transport.write(data)
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._transport.abort()  # connection_lost follows and ends the exchange
            return
        if sent < len(data):
            self._transport.write(data[sent:])

    def abandon(self) -> None:
        """Drop the connection and its exchange; harmless if it is closed already."""
        self._log = self._ended = None
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        """Stamp the read, log its body bytes, and end the exchange if the response is complete."""
        now_ns = time.monotonic_ns()
        log = self._log
        if log is None:  # bytes without a request: the server broke the protocol
            self.abandon()
            return
        self._now_ns = now_ns
        log.received_bytes += len(data)  # headers, too, which may be endless
        broken = None
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            broken = f"not HTTP/1.1: {error}"
        bodies = self._bodies
        if bodies:
            log.read_ns.append(now_ns)
            self._count(len(bodies), now_ns)
            log.reads.append(bodies.pop() if len(bodies) == 1 else b"".join(bodies))
            bodies.clear()
        if log.received_bytes > log.limit_bytes:
            self.reusable = False  # the pool closes it
            self._finish(StreamEnd.TOO_LARGE, log.too_large)
        elif broken:
            self._finish(StreamEnd.RESET, broken)
        elif self._whole:
            self._finish(StreamEnd.COMPLETE, self._location)
        elif log.reads and log.reads[-1].endswith(_END_MARKS):
            asyncio.get_running_loop().call_later(LEFT_OPEN_S, self._end_left_open, log)

    def _end_left_open(self, log: StreamLog) -> None:
        """End an exchange whose answer is over, on a connection that the server leaves open."""
        if self._log is log:
            self._now_ns = time.monotonic_ns()
            self.reusable = False  # the pool closes it
            self._finish(StreamEnd.COMPLETE, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange: a response without a length is complete, any other has been cut off.

        A request on a used connection that soon ends without a byte has met a server that was closing it (RFC 9110,
        9.2.2): it is sent again, once. Later the server has had the request, and lost it.
        """
        self._now_ns = time.monotonic_ns()
        self.reusable = False
        log, ended = self._log, self._ended
        is_unanswered = log is not None and self._is_used and not (log.received_bytes or log.is_resent)
        if log is not None and ended is not None and is_unanswered and self._now_ns - (log.sent_ns or 0) < CLOSING_NS:
            self._log = self._ended = None
            self._owner.resend(self, self._data, log, ended)
            return
        if self._headers_done and not self._framed and exc is None:
            self._finish(StreamEnd.COMPLETE, None)
        else:
            cut_off = "the server closed the connection before the answer was whole"
            self._finish(StreamEnd.RESET, str(exc) if exc else cut_off)

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the response has a length, where it redirects to, and which replica it comes from."""
        name = name.lower()
        if name in {b"content-length", b"transfer-encoding"}:
            self._framed = True
        elif name == b"location":
            self._location = value.decode("latin-1")
        elif name == self._replica_name and self._replica_header and self._log is not None:
            self._log.address = self._replica_header.replica(value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Keep the status."""
        if self._log is not None:
            self._log.status = self._parser.get_status_code()
        self._headers_done = True

    def on_message_complete(self) -> None:
        """Mark the response as complete, and the connection as reusable if it is."""
        if self._parser.get_status_code() < 200:
            return  # an interim response (100, 103): the final one follows
        self._whole = True
        self.reusable = self._framed and self._parser.should_keep_alive()
        self.free_since_ns = self._now_ns

    def _finish(self, end: StreamEnd, detail: str | None) -> None:
        log, ended = self._log, self._ended
        if log is None or ended is None:
            return
        self._log = self._ended = None
        self._is_used, self._data = True, b""
        log.end, log.detail, log.ended_ns = end, detail, self._now_ns
        self._owner.release(self, log)
        ended(log)
