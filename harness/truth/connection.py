"""One client's connection: bytes in, whole requests out."""

import contextlib
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from harness.truth.answer import Answer
    from harness.truth.server import TruthServer

_READ_BYTES = 1 << 16
_IN = select.EPOLLIN | select.EPOLLRDHUP
_RESET = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """Parses what comes in; the server decides what goes out.

    Attributes:
        number: in the order of acceptance.
        fd: of its socket; -1 when it is closed.
        answer: what is being answered, or the answer whose fault has silenced the connection.
        method, path, body: of the last whole request.
        keep: whether the connection stays open after its answer.
    """

    def __init__(self, server: "TruthServer", taken: socket.socket, number: int) -> None:
        self._server = server
        self._socket = taken
        self.number = number
        self.fd = taken.fileno()
        self.answer: Answer | None = None
        self.keep = True
        self.method = self.path = ""
        self.body = b""
        self._request = _Request()
        self._parser = httptools.HttpRequestParser(self._request)
        server.epoll.register(self.fd, _IN)

    def on_event(self, mask: int) -> None:
        """What epoll saw."""
        if mask & select.EPOLLOUT and self.answer is not None:
            self._server.epoll.modify(self.fd, _IN)
            self._server.pump.resume(self.answer)
        if mask & ~select.EPOLLOUT:
            self._read()

    def wait_writable(self) -> None:
        """Tell when the kernel takes bytes again."""
        self._server.epoll.modify(self.fd, _IN | select.EPOLLOUT)

    def close(self, *, reset: bool = False) -> None:
        """Close it; with ``reset`` the peer gets a RST, not an orderly end. Closing twice is harmless."""
        if self.fd < 0:
            return
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.fd = -1
        self._socket.close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        now_ns = time.monotonic_ns()
        if not data:
            self._server.gone(self, now_ns)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._server.refuse(self, f"not an HTTP/1.1 request that is understood here: {error}", now_ns)
            return
        if self._request.expects:
            self._request.expects = False
            with contextlib.suppress(OSError):
                self._socket.send(_CONTINUE)
        if self._request.pipelined:
            self._server.refuse(self, "a request before the answer to the one before it", now_ns)
        elif self._request.complete:
            self._take(now_ns)

    def _take(self, now_ns: int) -> None:
        request, self._request.complete = self._request, False
        self.method = self._parser.get_method().decode("latin-1")
        self.path = request.url.partition(b"?")[0].decode("latin-1")
        self.body = bytes(request.body)
        self.keep = request.keep and self._parser.get_http_version() == "1.1"
        self._server.requested(self, now_ns)


class _Request:
    """What httptools calls; an object of its own, so that parser and connection hold each other in no cycle."""

    def __init__(self) -> None:
        self.url = b""
        self.body = bytearray()
        self.keep = True
        self.expects = self.complete = self.pipelined = False

    def on_message_begin(self) -> None:
        self.pipelined = self.complete
        self.url = b""
        self.body.clear()
        self.keep = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower(), value.lower():
            case b"expect", b"100-continue":
                self.expects = True
            case b"connection", b"close":
                self.keep = False
            case _:
                pass

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
