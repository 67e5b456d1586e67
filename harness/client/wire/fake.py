"""A transport that replays a script, for tests of everything above the socket in virtual time."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.client.wire.transport import Ended, StreamLog
from bakeoff.harness.host.clock import LoopClock
from bakeoff.results.records import StreamEnd
from bakeoff.results.units import NS_PER_S


class ScriptedTransport:
    """Responds to every request with the same reads at the same delays.

    Args:
        reads: delay in seconds after the previous read, and body bytes, of each read.
        servers: number of requests served at a time, the others wait in order; None for no limit.
        pauses: start and end, in seconds of loop time, of periods in which nothing arrives: reads that are due in a
            period arrive at its end.
        status: HTTP status.
        end: how the exchange ends.
    """

    def __init__(
        self,
        reads: Sequence[tuple[float, bytes]],
        *,
        servers: int | None = None,
        pauses: Sequence[tuple[float, float]] = (),
        status: int = 200,
        end: StreamEnd = StreamEnd.COMPLETE,
    ) -> None:
        self._reads = [(round(delay_s * NS_PER_S), body) for delay_s, body in reads]
        self._free = servers
        self._pauses = [(round(start_s * NS_PER_S), round(end_s * NS_PER_S)) for start_s, end_s in pauses]
        self._status = status
        self._end = end
        self._clock = LoopClock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._live: set[StreamLog] = set()
        self.sent: list[HttpRequest] = []
        """Every request, in order of arrival."""
        self.keep_sent = True
        self.in_flight: int = 0
        self.max_in_flight: int = 0

    async def open(self, connections: int, *, growing: bool = False) -> None:
        """Do nothing: there are no connections."""

    def prepare(self, request: HttpRequest, conversation: str = "") -> HttpRequest:  # noqa: ARG002
        """The request itself."""
        return request

    def start(self, prepared: HttpRequest, log: StreamLog, ended: Ended) -> None:
        """Replay the script; see :class:`~bakeoff.harness.client.wire.transport.Transport`."""
        log.sent_ns = self._clock.now_ns()
        if self.keep_sent:
            self.sent.append(prepared)
        self._live.add(log)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        log.status = self._status
        if self._free == 0:
            self._waiting.append(lambda: self._wait(log, ended, 0, self._clock.now_ns()))
            return
        if self._free is not None:
            self._free -= 1
        self._wait(log, ended, 0, log.sent_ns)

    def drop(self, log: StreamLog) -> None:
        """Forget the exchange; at its next read it frees its server."""
        if log in self._live:
            self._live.remove(log)
            self.in_flight -= 1

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _wait(self, log: StreamLog, ended: Ended, number: int, now_ns: int) -> None:
        """Schedule the next read, or the end if there is none; reads that are due together arrive together."""
        due_ns = now_ns + (self._reads[number][0] if number < len(self._reads) else 0)
        due_ns = next((end_ns for start_ns, end_ns in self._pauses if start_ns <= due_ns < end_ns), due_ns)
        asyncio.get_running_loop().call_at(due_ns / NS_PER_S, self._read, log, ended, number, due_ns)

    def _read(self, log: StreamLog, ended: Ended, number: int, now_ns: int) -> None:
        if log not in self._live:
            self._free_server()
            return
        while number < len(self._reads):
            log.read_ns.append(now_ns)
            log.reads.append(self._reads[number][1])
            number += 1
            if number < len(self._reads) and self._reads[number][0] > 0:
                self._wait(log, ended, number, now_ns)
                return
        self.drop(log)
        self._free_server()
        log.end, log.ended_ns = self._end, now_ns
        ended(log)

    def _free_server(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        elif self._free is not None:
            self._free += 1
