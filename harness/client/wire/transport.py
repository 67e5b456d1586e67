"""The interface between the driver and the network.

An exchange is one request and its response. It takes a callback instead of being awaited: a coroutine would resume only
after every read of its loop iteration, so with 512 streams in step the next sends would wait for 512 reads.
"""

from collections.abc import Callable
from typing import Any, Protocol

from bakeoff.engines.dialects import HttpRequest
from bakeoff.results.records import StreamEnd

CONNECT_S = 10.0
"""Limit for opening a connection; the kernel would try for minutes."""
MIN_LIMIT_BYTES, PASSAGES_LIMIT_BYTES = 1 << 20, 16 << 20
TOKEN_LIMIT_BYTES = 16 << 10
"""64 times the 256 bytes of a token's event; one with the log-probabilities of 20 tokens has about 2 KiB."""


def limit_bytes(requested_tokens: int, passages: int | None = None) -> int:
    """Bytes after which a response can be no answer to a request for so many tokens, or for rows of passages."""
    least = MIN_LIMIT_BYTES if passages is None else PASSAGES_LIMIT_BYTES
    return max(least, TOKEN_LIMIT_BYTES * requested_tokens)


class StreamLog:
    """Raw log of one exchange; filled by a transport, read by the driver.

    Args:
        limit_bytes: of the response; its connection is closed after more.
    """

    __slots__ = (
        "address", "detail", "dial_end_ns", "dial_start_ns", "end", "ended_ns", "is_resent", "limit_bytes", "read_ns",
        "reads", "received_bytes", "sent_ns", "status",
    )  # fmt: skip

    def __init__(self, limit_bytes: int = MIN_LIMIT_BYTES) -> None:
        self.limit_bytes: int = limit_bytes
        self.address: str | None = None
        """Label of the address that it was sent to, or of the replica that answered; None if there is only one."""
        self.received_bytes: int = 0
        """Of the response so far."""
        self.dial_start_ns: int | None = None
        self.dial_end_ns: int | None = None
        """Start and end of opening a connection for this exchange (DNS, TCP, TLS); None if one was ready."""
        self.sent_ns: int | None = None
        """When the first byte was handed to the socket, the first time if it was sent twice."""
        self.is_resent: bool = False
        """Whether it was sent again on a new connection."""
        self.status: int | None = None
        self.read_ns: list[int] = []
        self.reads: list[bytes] = []
        """Body bytes of each read, HTTP framing removed."""
        self.ended_ns: int = 0
        self.end: StreamEnd = StreamEnd.CANCELLED
        self.detail: str | None = None

    @property
    def too_large(self) -> str:
        """Detail of an exchange that exceeds its limit."""
        return f"the server sent more than {self.limit_bytes / 2**20:.3g} MiB"


Ended = Callable[[Any], None]
"""Called with the log of an exchange at its end; it may start the next one."""


class Transport(Protocol):
    """Sends requests and logs responses; in tests a :class:`bakeoff.harness.client.wire.fake.ScriptedTransport`."""

    async def open(self, connections: int, *, growing: bool = False) -> None:
        """Open connections in advance, as many as the server allows; failures show when a request needs one.

        Args:
            connections: how many to open.
            growing: whether the load may need more later; then they are opened before they are needed.
        """
        ...

    def prepare(self, request: HttpRequest, conversation: str = "") -> Any:  # noqa: ANN401  (opaque to the caller)
        """Do the work on ``request`` that needs no connection; :meth:`start` takes the result.

        Args:
            request: what to send.
            conversation: name of its session and agent.
        """
        ...

    def start(self, prepared: Any, log: StreamLog, ended: Ended) -> None:  # noqa: ANN401
        """Send, fill ``log``, then call ``ended(log)`` once, never from within this call. Failures are logged."""
        ...

    def drop(self, log: StreamLog) -> None:
        """Abort the exchange: close its connection, leave its log as it is, and do not call ``ended``."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
