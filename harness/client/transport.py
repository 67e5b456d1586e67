"""The seam between the driver and the network.

An exchange is one request and its answer. It is started with a callback and not awaited: a coroutine would run only
after every read of its loop iteration, so that with 512 streams in step the next sends would wait for 512 reads.
"""

from collections.abc import Callable
from typing import Any, Protocol

from engines.dialects import HttpRequest
from results.records import StreamEnd


class StreamLog:
    """What one exchange left behind; filled by a transport, read by the driver."""

    __slots__ = ("detail", "dial_end_ns", "dial_start_ns", "end", "ended_ns", "read_ns", "reads", "sent_ns", "status")

    def __init__(self) -> None:
        self.dial_start_ns: int | None = None
        self.dial_end_ns: int | None = None
        """Between the two a connection was opened for this exchange (DNS, TCP, TLS); None where one was ready."""
        self.sent_ns: int | None = None
        self.status: int | None = None
        self.read_ns: list[int] = []
        self.reads: list[bytes] = []
        """Body bytes of each read, HTTP framing removed."""
        self.ended_ns: int = 0
        self.end: StreamEnd = StreamEnd.CANCELLED
        self.detail: str | None = None


Ended = Callable[[Any], None]
"""Called with the log of an exchange when it has ended; it may start the next one."""


class Transport(Protocol):
    """Sends requests and logs their answers. A fake for tests is :class:`harness.client.fake.ScriptedTransport`."""

    async def open(self, connections: int, *, growing: bool = False) -> None:
        """Have as many connections ready, as far as the server lets; failures show when a request needs one.

        Args:
            connections: how many.
            growing: whether more may be needed later; then they are opened ahead of that.
        """
        ...

    def prepare(self, request: HttpRequest) -> Any:  # noqa: ANN401  (the transport's own affair)
        """Whatever can be done with ``request`` before it is due; the result goes to :meth:`start`."""
        ...

    def start(self, prepared: Any, log: StreamLog, ended: Ended) -> None:  # noqa: ANN401
        """Send, fill ``log``, then call ``ended(log)`` once, never from within this call. Failures are logged."""
        ...

    def drop(self, log: StreamLog) -> None:
        """Give the exchange up: its connection is closed, its log not touched again, ``ended`` not called."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
