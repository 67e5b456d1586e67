"""The measuring client in virtual time: the real driver in this process, over connections that are only counted."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.client.fleet.worker_host import WorkerClock
from bakeoff.harness.client.wire.orders import Done, Order, Prepare, Reply
from bakeoff.harness.client.wire.transport import Ended, StreamLog
from bakeoff.harness.client.worker.driver import Issue
from bakeoff.harness.client.worker.load_runner import LoadEnvironment, LoadRunner
from bakeoff.harness.errors import WorkerLost
from bakeoff.harness.host.clock import Clock, LoopClock
from bakeoff.harness.truth.answered import CompletionRequest
from bakeoff.harness.truth.requests import body_of, completion_request
from bakeoff.harness.virtual.prefix_cache import prompt_of
from bakeoff.harness.virtual.server import Exchange, VirtualServer
from bakeoff.results.records import Phase, StreamEnd


class VirtualTransport:
    """A :class:`~bakeoff.harness.client.wire.transport.Transport` to one virtual server.

    Reads are written into a log only when its exchange ends or is dropped: nothing looks at them before.

    Args:
        server: at the other end.
        dial_s: time to open a connection.
        trial: id of the trial that the load belongs to, or None.
        phase: of its requests.
    """

    def __init__(self, server: VirtualServer, dial_s: float, trial: str | None, phase: Phase) -> None:
        self._server = server
        self._dial_s = dial_s
        self._trial = trial
        self._phase = phase
        self._idle = 0
        self._dialling: dict[StreamLog, asyncio.TimerHandle] = {}

    async def open(self, connections: int, *, growing: bool = False) -> None:  # noqa: ARG002  (dial times are to show)
        """Wait as long as it takes to open the connections."""
        if self._dial_s:
            await asyncio.sleep(self._dial_s)
        self._idle = connections

    def prepare(self, request: HttpRequest, conversation: str = "") -> tuple[CompletionRequest, str]:  # noqa: ARG002
        """Parse the request as the server does."""
        prompt = prompt_of(request) if self._server.has_cache else ""
        return completion_request(request.path, body_of(request.path, request.body), "virtual"), prompt

    def start(self, prepared: tuple[CompletionRequest, str], log: StreamLog, ended: Ended) -> None:
        def on_end(log: StreamLog) -> None:
            if log.end is StreamEnd.COMPLETE:
                self._idle += 1
            ended(log)

        exchange = Exchange(*prepared, log, on_end, trial=self._trial, phase=self._phase)
        if self._idle or not self._dial_s:
            self._idle = max(0, self._idle - 1)
            self._server.receive(exchange)
        else:
            loop = asyncio.get_running_loop()
            self._dialling[log] = loop.call_later(self._dial_s, self._dialled, exchange)

    def drop(self, log: StreamLog) -> None:
        if handle := self._dialling.pop(log, None):
            handle.cancel()
        else:
            self._server.drop(log)

    async def close(self) -> None:
        """Do nothing: no connection is real."""

    def _dialled(self, exchange: Exchange) -> None:
        del self._dialling[exchange.log]
        self._server.receive(exchange)


class VirtualWorkerHost:
    """A :class:`~bakeoff.harness.client.fleet.worker_host.WorkerHost` in this process.

    Args:
        environment: provides transports and a clock.
        host: name of its machine.
    """

    pid = 0
    clock: WorkerClock = WorkerClock()

    def __init__(self, environment: LoadEnvironment, host: str = "virtual") -> None:
        self.host = host
        self._environment = environment
        self._is_gone = False
        self._begin()

    def _begin(self) -> None:
        self._is_lost = False
        self._replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._loads = LoadRunner(self._environment, self._replies.put_nowait)

    async def lose(self, *, for_good: bool = False) -> None:
        """End as a worker does whose machine is switched off; what it has recorded so far is kept.

        Args:
            for_good: whether nothing can replace it.
        """
        self._is_lost, self._is_gone = True, for_good
        await self._loads.stop()
        self._replies.put_nowait(None)

    async def renew(self) -> None:
        """Begin anew after :meth:`lose`.

        Raises:
            WorkerLost: it is lost for good.
        """
        if self._is_gone:
            raise WorkerLost(f"no machine is left for the client worker on {self.host}")
        if self._is_lost:
            self._begin()

    async def send(self, order: Order) -> None:
        """Execute an order."""
        if not self._is_lost:
            await self._loads.execute(order)

    async def reply(self) -> Reply:
        """The next reply.

        Raises:
            WorkerLost: it has ended.
        """
        reply = None if self._is_lost else await self._replies.get()
        if reply is None or self._is_lost:
            raise WorkerLost(f"the client worker on {self.host} is lost")
        return reply

    async def stage(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    def remote_path(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    async def collect(self, path: Path) -> None:
        """Do nothing: the file is already there."""


class VirtualEnvironment:
    """A :class:`~bakeoff.harness.client.worker.load_runner.LoadEnvironment` that reaches the virtual servers.

    Args:
        servers: running servers by base URL; may change between loads.
    """

    def __init__(self, servers: Mapping[str, VirtualServer]) -> None:
        self._servers = servers

    def transport(self, order: Prepare, base_url: str) -> VirtualTransport:
        """A transport to the server at an address."""
        server = self._servers[base_url]
        return VirtualTransport(server, server.dial_s, _trial_of(Path(order.log).parent), order.phase)

    def clock(self) -> LoopClock:
        """Virtual time."""
        return LoopClock()

    def meter(self, clock: Clock) -> "NoMeter":  # noqa: ARG002  (no time is spent)
        """A meter that reads zero."""
        return NoMeter()


class NoMeter:
    """A :class:`~bakeoff.harness.client.worker.load_runner.Meter` that reads zero: virtual loads cost nothing."""

    def begin(self) -> None:
        """Do nothing."""

    def done(self, planned: int, issue: Issue) -> Done:
        """The result without costs."""
        return Done(planned=planned, start_ns=issue.start_ns, end_ns=issue.end_ns)

    def close(self) -> None:
        """Do nothing."""


def _trial_of(folder: Path) -> str | None:
    """The trial's id; None for a scratch folder, such as that of a warm-up round."""
    return folder.name if folder.parent.name == "trials" else None
