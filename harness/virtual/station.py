"""The measuring client in virtual time: the real driver, in this process, over connections that are only counted."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from engines.dialects import HttpRequest
from harness.client.driver import Issue
from harness.client.loads import Host, Loads
from harness.client.orders import Answer, Done, Order, Prepare
from harness.client.station import WorkerClock
from harness.client.transport import Ended, StreamLog
from harness.host.clock import Clock, LoopClock
from harness.truth.answered import CompletionRequest
from harness.truth.requests import completion_request
from harness.virtual.prefix_cache import prompt_of
from harness.virtual.server import Exchange, VirtualServer
from results.records import Phase, StreamEnd


class VirtualTransport:
    """A :class:`~harness.client.transport.Transport` to one virtual server.

    What arrives is written into a log when its exchange ends or is given up: nothing looks at it before.

    Args:
        server: at the other end.
        dial_s: to open a connection.
        trial: to which the load belongs, or None.
        phase: of its requests.
    """

    def __init__(self, server: VirtualServer, dial_s: float, trial: str | None, phase: Phase) -> None:
        self._server = server
        self._dial_s = dial_s
        self._trial = trial
        self._phase = phase
        self._idle = 0
        self._dialling: dict[StreamLog, asyncio.TimerHandle] = {}

    async def open(self, connections: int, *, growing: bool = False) -> None:  # noqa: ARG002  (dialling shall show)
        """Wait until so many are open."""
        if self._dial_s:
            await asyncio.sleep(self._dial_s)
        self._idle = connections

    def prepare(self, request: HttpRequest) -> tuple[CompletionRequest, str]:
        """What the server will read of it."""
        prompt = prompt_of(request) if self._server.has_cache else ""
        return completion_request(request.path, request.body, "virtual"), prompt

    def start(self, prepared: tuple[CompletionRequest, str], log: StreamLog, ended: Ended) -> None:
        """See :class:`~harness.client.transport.Transport`."""

        def over(done: StreamLog) -> None:
            if done.end is StreamEnd.COMPLETE:
                self._idle += 1
            ended(done)

        exchange = Exchange(*prepared, log, over, trial=self._trial, phase=self._phase)
        if self._idle or not self._dial_s:
            self._idle = max(0, self._idle - 1)
            self._server.receive(exchange)
        else:
            loop = asyncio.get_running_loop()
            self._dialling[log] = loop.call_later(self._dial_s, self._dialled, exchange)

    def drop(self, log: StreamLog) -> None:
        """See :class:`~harness.client.transport.Transport`."""
        if handle := self._dialling.pop(log, None):
            handle.cancel()
        else:
            self._server.drop(log)

    async def close(self) -> None:
        """Nothing is open."""

    def _dialled(self, exchange: Exchange) -> None:
        del self._dialling[exchange.log]
        self._server.receive(exchange)


class VirtualStation:
    """A :class:`~harness.client.station.Station` in this process.

    Args:
        host: gives it transports and a clock.
    """

    host = "virtual"
    pid = 0
    clock = WorkerClock()

    def __init__(self, host: Host) -> None:
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._loads = Loads(host, self._answers.put_nowait)

    async def send(self, order: Order) -> None:
        """Obey it."""
        await self._loads.obey(order)

    async def answer(self) -> Answer:
        """The next one."""
        return await self._answers.get()

    async def stage(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    def place(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    async def collect(self, path: Path) -> None:
        """It is where it should be."""


class VirtualHost:
    """A :class:`~harness.client.loads.Host` from which the virtual servers are reached.

    Args:
        servers: by base URL; those that run at the time of a load.
    """

    def __init__(self, servers: Mapping[str, VirtualServer]) -> None:
        self._servers = servers

    def transport(self, order: Prepare) -> VirtualTransport:
        """To the server that runs at the address."""
        server = self._servers[order.base_url]
        return VirtualTransport(server, server.dial_s, _trial_of(Path(order.log).parent), order.phase)

    def clock(self) -> LoopClock:
        """Of virtual time."""
        return LoopClock()

    def meter(self, clock: Clock) -> "NoMeter":  # noqa: ARG002  (no time is spent)
        """Nothing costs anything."""
        return NoMeter()


class NoMeter:
    """A :class:`~harness.client.loads.Meter` of a load that costs nothing."""

    def begin(self) -> None:
        """Nothing to prepare."""

    def done(self, planned: int, issue: Issue) -> Done:
        """No time was spent."""
        return Done(planned=planned, start_ns=issue.start_ns, end_ns=issue.end_ns)

    def close(self) -> None:
        """Nothing was begun."""


def _trial_of(folder: Path) -> str | None:
    """The trial's id; None of a scratch folder, as those of settling rounds."""
    return folder.name if folder.parent.name == "trials" else None
