"""Executes a client worker's orders, whether the worker is a process or part of a virtual world."""

import asyncio
import errno
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bakeoff.engines.addresses import Balance
from bakeoff.harness.client.wire.balancing import Balancer, balancer
from bakeoff.harness.client.wire.divided_transport import DividedTransport
from bakeoff.harness.client.wire.orders import (
    ClockTime,
    Closed,
    Done,
    Finish,
    Go,
    Join,
    Measure,
    Open,
    Order,
    Prepare,
    ReadClock,
    Ready,
    Reply,
    Silence,
    Steady,
    Stop,
    Stopped,
    Target,
)
from bakeoff.harness.client.wire.plan import read_wire
from bakeoff.harness.client.wire.transport import Transport
from bakeoff.harness.client.worker.driver import Driver, Issue
from bakeoff.harness.client.worker.idle_caps import IdleCaps
from bakeoff.harness.client.worker.redaction import redacting_recorder
from bakeoff.harness.errors import first_leaf
from bakeoff.harness.host.clock import Clock
from bakeoff.results.errors import NotWritable
from bakeoff.results.files.frames import FrameAppender


class Meter(Protocol):
    """Measures what one load costs the worker."""

    def begin(self) -> None:
        """Begin measuring: everything is prepared, and the load begins on the fleet's order."""
        ...

    def done(self, planned: int, issue: Issue) -> Done:
        """Sum up at the end of the load."""
        ...

    def close(self) -> None:
        """Release what :meth:`begin` took, however the load ended."""
        ...


class LoadEnvironment(Protocol):
    """The parts of a worker that depend on where it runs."""

    def transport(self, order: Prepare, base_url: str) -> Transport:
        """A transport to one target of an order."""
        ...

    def clock(self) -> Clock:
        """A new clock for each load."""
        ...

    def meter(self, clock: Clock) -> Meter:
        """A new meter for each load."""
        ...


class LoadRunner:
    """Executes orders; one load at a time.

    Args:
        environment: of this worker.
        reply: takes its replies.
    """

    def __init__(self, environment: LoadEnvironment, reply: Callable[[Reply], None]) -> None:
        self._environment = environment
        self._reply = reply
        self._go: asyncio.Future[int] | None = None
        self._load: asyncio.Task[Done] | None = None
        self._driver: Driver | None = None
        self._balancer: tuple[tuple[tuple[Target, ...], Balance], Balancer] | None = None
        self._divided: DividedTransport | None = None

    async def execute(self, order: Order) -> None:
        """Execute one order; its reply follows when it is known."""
        match order:
            case Prepare():
                self._go = asyncio.get_running_loop().create_future()
                self._load = asyncio.create_task(self._run(order, self._go))
                self._load.add_done_callback(lambda task: self._reply(_outcome(task)))
            case Go():
                assert self._go is not None
                self._go.set_result(order.start_ns)
            case Measure():
                assert self._driver is not None
                self._driver.measure(order)
            case Join():
                assert self._divided is not None
                await self._divided.join(order.label)
            case Finish():
                assert self._driver is not None
                self._driver.finish(abort=order.abort)
            case ReadClock():
                self._reply(ClockTime(self._environment.clock().now_ns()))
            case Stop():
                await self.stop()
                self._reply(Stopped())

    @property
    def is_busy(self) -> bool:
        """Whether a load is in progress."""
        return self._load is not None and not self._load.done()

    def silence(self, least_s: float) -> Silence | None:
        """How long the server has sent nothing under the load in progress, if for ``least_s`` at least."""
        return self._driver.silence(least_s) if self.is_busy and self._driver is not None else None

    async def stop(self) -> None:
        """Cancel the load in progress, if any."""
        if self._load is not None and not self._load.done():
            self._load.cancel()
            await asyncio.wait([self._load])

    async def _run(self, order: Prepare, go: asyncio.Future[int]) -> Done:
        transport, clock = self._transport(order), self._environment.clock()
        meter = self._environment.meter(clock)

        async def begin() -> int:
            meter.begin()
            self._reply(Ready())
            return await go

        with FrameAppender(Path(order.log)) as log:
            driver = self._driver = Driver(
                transport, clock=clock, recorder=redacting_recorder(log, order.access), timeout_s=order.timeout_s,
                phase=order.phase, dialect=order.format.dialect() if order.format else None, begin=begin,
            )  # fmt: skip
            try:
                issue = await self._drive(driver, order)
                return meter.done(driver.planned, issue)
            except asyncio.CancelledError:
                return Done(driver.planned)  # the driver has recorded the requests in flight as cancelled
            finally:
                meter.close()
                clock.close()
                await transport.close()

    def _transport(self, order: Prepare) -> Transport:
        """A transport to the targets of a load."""
        transports = [self._environment.transport(order, target.base_url) for target in order.targets]
        if len(transports) == 1:  # directly, because a division delays each send
            return transports[0]
        division = order.targets, order.balance
        # Kept from load to load: what was sent to an address before the load is in its cache.
        if self._balancer is None or self._balancer[0] != division:
            self._balancer = division, balancer(order.balance, [target.label or "" for target in order.targets])
        self._divided = DividedTransport(order.targets, transports, self._balancer[1])
        return self._divided

    async def _drive(self, driver: Driver, order: Prepare) -> Issue:
        match order.load:
            case Steady():
                return await driver.steady(order.load, order.sessions, order.begun, self._reply)
            case Open(duration_s, max_in_flight):
                sessions = read_wire(order.sessions)
                return await driver.open_loop(sessions, duration_s=duration_s, max_in_flight=max_in_flight)
            case Closed() as share:
                return await driver.closed_loop(
                    read_wire(order.sessions),
                    share.concurrency,
                    duration_s=share.duration_s,
                    minimum=share.minimum,
                    grace_s=share.grace_s,
                    caps=IdleCaps.of(share.idle_cap_s, share.session_idle_cap_s),
                )


def _outcome(task: asyncio.Task[Done]) -> Done:
    if task.cancelled():  # before it began
        return Done(0)
    error = task.exception()
    if error is not None:
        cause = first_leaf(error)
        if isinstance(cause, OSError) and cause.errno in {errno.EMFILE, errno.ENFILE}:
            files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raising = "raise it (ulimit -Hn), or lower the load"
            return Done(0, failure=f"its limit of {files} open files is reached; {raising}")
        if isinstance(cause, NotWritable):
            return Done(0, failure=str(cause), unwritable=True)
        return Done(0, failure=f"{type(cause).__name__}: {cause}")
    return task.result()
