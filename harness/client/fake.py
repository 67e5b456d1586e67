"""A transport that replays a script: for tests of anything above the socket, in virtual time."""

import asyncio
from collections.abc import Sequence

from engines.dialects import HttpRequest
from harness.client.transport import StreamLog
from harness.clock import LoopClock


class ScriptedTransport:
    """Answers every request with the same reads at the same delays.

    Args:
        reads: pairs of delay in seconds after the last one, and body bytes.
        servers: how many requests are answered at a time; the others wait their turn. None for no limit.
        status: HTTP status.
        end: how the exchange ends.
    """

    def __init__(
        self,
        reads: Sequence[tuple[float, bytes]],
        *,
        servers: int | None = None,
        status: int = 200,
        end: str = "complete",
    ) -> None:
        self._reads = reads
        self._status = status
        self._end = end
        self._slots = asyncio.Semaphore(servers) if servers else None
        self._clock = LoopClock()
        self.sent: list[HttpRequest] = []
        """Every request, in the order in which they came."""
        self.in_flight = 0
        self.max_in_flight = 0

    async def exchange(self, request: HttpRequest, log: StreamLog, timeout_s: float) -> None:
        """Replay the script; see :class:`~harness.client.transport.Transport`."""
        log.sent_ns = self._clock.now_ns()
        self.sent.append(request)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            async with asyncio.timeout(timeout_s):
                await self._answer(log)
            log.end = self._end
        except TimeoutError:
            log.end = "timeout"
        finally:
            self.in_flight -= 1
            log.ended_ns = self._clock.now_ns()

    async def close(self) -> None:
        """Nothing is open."""

    async def _answer(self, log: StreamLog) -> None:
        if self._slots is None:
            await self._replay(log)
            return
        async with self._slots:
            await self._replay(log)

    async def _replay(self, log: StreamLog) -> None:
        log.status = self._status
        for delay_s, body in self._reads:
            await asyncio.sleep(delay_s)
            log.read_ns.append(self._clock.now_ns())
            log.reads.append(body)
