"""Pool of connections that are open before a request needs one.

Opening a connection takes one to four round trips to the server (DNS, TCP, TLS). The pool of a growing load therefore
holds spares: as many as its requests take while a new connection is being opened. Idle connections that are too old are
replaced in the background. A request that finds none ready opens its own, and its record states how long that took:
this is a property of the path to the server, not lateness of the client.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from bakeoff.results.units import NS_PER_S

MAX_IDLE_S = 2.0
"""Longest idle time before a connection is replaced: servers close theirs after 5 s or more, and a request on a closing
connection would look like a failure of the engine."""
REVIEW_S = 0.25
"""Period of the review of idle connections."""
_PEAK_REVIEWS = 20
"""Reviews over which the peak number in use is remembered: 5 s."""
_MARGIN = 2.0
"""Factor on the mean number of requests while a connection is being opened, since arrivals are uneven."""
_AT_ONCE = 64
"""Most connections being opened at the same time."""
_RETRY_NS = 1_000_000_000
"""Time without opening spares after a failure."""


class Pooled(Protocol):
    """A connection that carries one exchange at a time."""

    reusable: bool
    """Whether it can carry another exchange."""
    free_since_ns: int
    """When it was opened or its last exchange ended."""

    def abandon(self) -> None:
        """Close it; harmless if it is closed already."""
        ...


C = TypeVar("C", bound=Pooled)


class Pool(Generic[C]):
    """The idle connections of one transport.

    Args:
        connect: opens a connection.
        now_ns: the monotonic clock.
    """

    def __init__(self, connect: Callable[[], Awaitable[C]], now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._connect = connect
        self._now_ns = now_ns
        self._idle: deque[C] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._review: asyncio.TimerHandle | None = None
        self._base = 0
        self._is_growing = False
        self._lent = 0
        self._kept = self._spent = 0
        self._peaks: deque[int] = deque([0], maxlen=_PEAK_REVIEWS)
        self._taken = 0
        self._rate_per_s = 0.0
        self._connect_s = 0.0
        self._retry_ns = 0

    async def fill(self, connections: int, *, growing: bool) -> None:
        """Open connections until ``connections`` are idle or the server refuses, and maintain them from now on.

        Args:
            connections: number of idle connections.
            growing: whether the load may need more; else spares never exceed ``connections``.
        """
        self._base, self._is_growing = connections, growing
        gate = asyncio.Semaphore(_AT_ONCE)
        for _ in range(connections - len(self._idle)):
            self._open_spare(gate)
        if self._opening:
            await asyncio.wait(self._opening)
        if self._review is None:
            self._review_later()

    def take(self) -> C | None:
        """The oldest usable idle connection; None if there is none."""
        self._taken += 1
        while self._idle:
            connection = self._idle.popleft()
            if self._is_usable(connection):
                self._lend()
                return connection
            connection.abandon()
        return None

    async def opened(self) -> C:
        """Open a connection for a request that found none ready.

        Raises:
            OSError: it cannot be opened.
        """
        self._lend()
        try:
            return await self._timed()
        except BaseException:
            self._lent -= 1
            raise

    def give_back(self, connection: C) -> None:
        """Take back a connection whose exchange has ended; keep it if it can carry another."""
        self._lent -= 1
        if connection.reusable:
            self._kept += 1
            self._idle.append(connection)
        else:
            self._spent += 1
            connection.abandon()

    def close(self) -> None:
        """Close idle connections and open no more."""
        if self._review is not None:
            self._review.cancel()
            self._review = None
        for task in self._opening:
            task.cancel()
        while self._idle:
            self._idle.popleft().abandon()

    def _lend(self) -> None:
        self._lent += 1
        self._peaks[-1] = max(self._peaks[-1], self._lent)
        if self._review is not None and self._is_growing:
            self._top_up()

    def _is_usable(self, connection: C) -> bool:
        return connection.reusable and self._now_ns() - connection.free_since_ns < MAX_IDLE_S * NS_PER_S

    def _review_later(self) -> None:
        self._review = asyncio.get_running_loop().call_later(REVIEW_S, self._review_idle)

    def _review_idle(self) -> None:
        """Close connections that are too old, and replace those that will be needed."""
        for _ in range(len(self._idle)):
            connection = self._idle.popleft()
            if self._is_usable(connection):
                self._idle.append(connection)
            else:
                connection.abandon()
        self._rate_per_s, self._taken = self._taken / REVIEW_S, 0
        self._peaks.append(self._lent)
        self._top_up()
        self._review_later()

    def _top_up(self) -> None:
        """Open spares up to the recent peak in use plus the requests expected while a connection is being opened."""
        # A server that closes connections after each response often has a thread per connection: spares would block it.
        if self._spent > self._kept:
            return
        rate_per_s = max(self._rate_per_s, self._taken / REVIEW_S)
        target = max(self._peaks) + 1 + math.ceil(_MARGIN * rate_per_s * self._connect_s)
        if not self._is_growing:
            target = min(target, self._base)
        for _ in range(min(target - self._lent - len(self._idle), _AT_ONCE) - len(self._opening)):
            self._open_spare()

    def _open_spare(self, gate: asyncio.Semaphore | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._spare(gate))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _spare(self, gate: asyncio.Semaphore | None) -> None:
        """Open a spare connection; a failure shows in the request that needs a connection."""
        async with gate or contextlib.nullcontext():
            if self._now_ns() < self._retry_ns:
                return
            try:
                self._idle.append(await self._timed())
            except OSError:
                self._retry_ns = self._now_ns() + _RETRY_NS

    async def _timed(self) -> C:
        started_ns = self._now_ns()
        connection = await self._connect()
        self._connect_s = (self._now_ns() - started_ns) / NS_PER_S
        return connection
