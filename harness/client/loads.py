"""What a client worker does with its orders, whether it is a process or part of a virtual world."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from harness.client.driver import Driver, Issue
from harness.client.masking import without_secrets
from harness.client.orders import (
    Answer,
    AskClock,
    Closed,
    Done,
    Finish,
    Go,
    Measure,
    Open,
    Order,
    Prepare,
    Ready,
    Steady,
    Stop,
    Stopped,
    TellClock,
)
from harness.client.transport import Transport
from harness.client.wire import read_wire
from harness.errors import first_leaf
from harness.host.clock import Clock
from results.errors import NotWritable
from results.frames import FrameAppender


class Meter(Protocol):
    """What one load costs the worker."""

    def begin(self) -> None:
        """Everything is prepared; the load begins as soon as the fleet says so."""
        ...

    def done(self, planned: int, issue: Issue) -> Done:
        """The load is over: sum up."""
        ...

    def close(self) -> None:
        """Whatever ended it."""
        ...


class Host(Protocol):
    """Where a worker runs."""

    def transport(self, order: Prepare) -> Transport:
        """To the engine of a load."""
        ...

    def clock(self) -> Clock:
        """Time; a new one for each load."""
        ...

    def meter(self, clock: Clock) -> Meter:
        """A new one for each load."""
        ...


class Loads:
    """Obeys orders; one load at a time.

    Args:
        host: where this worker runs.
        say: takes its answers.
    """

    def __init__(self, host: Host, say: Callable[[Answer], None]) -> None:
        self._host = host
        self._say = say
        self._go: asyncio.Future[int] | None = None
        self._load: asyncio.Task[Done] | None = None
        self._driver: Driver | None = None

    async def obey(self, order: Order) -> None:
        """Carry out one order; what it is answered with follows when it is there."""
        match order:
            case Prepare():
                self._go = asyncio.get_running_loop().create_future()
                self._load = asyncio.create_task(self._measure(order, self._go))
                self._load.add_done_callback(lambda task: self._say(_outcome(task)))
            case Go():
                assert self._go is not None
                self._go.set_result(order.start_ns)
            case Measure():
                assert self._driver is not None
                self._driver.measure(order)
            case Finish():
                assert self._driver is not None
                self._driver.finish(abort=order.abort)
            case AskClock():
                self._say(TellClock(self._host.clock().now_ns()))
            case Stop():
                await self.stop()
                self._say(Stopped())

    async def stop(self) -> None:
        """Cut the load off, if one is on."""
        if self._load is not None and not self._load.done():
            self._load.cancel()
            await asyncio.wait([self._load])

    async def _measure(self, order: Prepare, go: asyncio.Future[int]) -> Done:
        transport, clock = self._host.transport(order), self._host.clock()
        meter = self._host.meter(clock)

        async def begin() -> int:
            meter.begin()
            self._say(Ready())
            return await go

        with FrameAppender(Path(order.log)) as log:
            driver = self._driver = Driver(
                transport, clock=clock, recorder=without_secrets(log, order.access), timeout_s=order.timeout_s,
                phase=order.phase, begin=begin,
            )  # fmt: skip
            try:
                issue = await self._drive(driver, order)
                return meter.done(driver.planned, issue)
            except asyncio.CancelledError:
                return Done(driver.planned)  # what was in flight has been recorded as cancelled
            finally:
                meter.close()
                clock.close()
                await transport.close()

    async def _drive(self, driver: Driver, order: Prepare) -> Issue:
        match order.load:
            case Steady():
                return await driver.steady(order.load, order.sessions, self._say)
            case Open(duration_s, max_in_flight):
                sessions = read_wire(order.sessions)
                return await driver.open_loop(sessions, duration_s=duration_s, max_in_flight=max_in_flight)
            case Closed(concurrency, duration_s, minimum):
                sessions = read_wire(order.sessions)
                return await driver.closed_loop(sessions, concurrency, duration_s=duration_s, minimum=minimum)


def _outcome(task: asyncio.Task[Done]) -> Done:
    if task.cancelled():  # before it had begun
        return Done(0)
    error = task.exception()
    if error is not None:
        cause = first_leaf(error)
        if isinstance(cause, NotWritable):
            return Done(0, failure=str(cause), unwritable=True)
        return Done(0, failure=f"{type(cause).__name__}: {cause}")
    return task.result()
