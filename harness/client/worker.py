"""One client worker: a process that measures and does nothing else.

It knows bytes and times, neither engines nor workloads. Orders come as lines on stdin (:mod:`harness.client.orders`);
it ends when stdin closes, so it is never orphaned, and then records what was in flight as cancelled.

Run as ``python -m harness.client [CORE]``: with a core, it is pinned to it, at real-time priority where the
system allows.
"""

import asyncio
import gc
import pkgutil
import resource
import signal
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from harness.client.driver import Driver, Issue
from harness.client.loop_lag import LoopLag, measured_loop_lag
from harness.client.masking import without_secrets
from harness.client.orders import (
    Answer,
    AskClock,
    Closed,
    Done,
    Go,
    Open,
    Order,
    Prepare,
    Ready,
    Stop,
    Stopped,
    TellClock,
)
from harness.client.transport import Transport
from harness.client.wire import read_wire
from harness.clock import MonotonicClock
from harness.errors import first_leaf
from harness.realtime import claim_core
from results.errors import NotWritable
from results.frames import FrameAppender

_TRANSPORTS = {
    "http": "harness.client.http:HttpTransport",
    "aiohttp": "harness.client.aiohttp_transport:AiohttpTransport",
}
"""By the name that experiments use; only the one that is asked for is imported, since aiohttp alone takes 0.2 s."""


class Worker:
    """Obeys orders; one load at a time."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Order).decode
        self._go: asyncio.Future[int] | None = None
        self._load: asyncio.Task[Done] | None = None

    async def run(self) -> None:
        """Obey until stdin closes."""
        orders = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        while line := await orders.readline():
            await self._obey(self._decode(line))
        await self._stop()

    async def _obey(self, order: Order) -> None:
        match order:
            case Prepare():
                self._go = asyncio.get_running_loop().create_future()
                self._load = asyncio.create_task(self._measure(order, self._go))
                self._load.add_done_callback(lambda task: _say(_outcome(task)))
            case Go():
                assert self._go is not None
                self._go.set_result(order.start_ns)
            case AskClock():
                _say(TellClock(time.monotonic_ns()))
            case Stop():
                await self._stop()
                _say(Stopped())

    async def _stop(self) -> None:
        """Cut the load off, if one is on."""
        if self._load is not None and not self._load.done():
            self._load.cancel()
            await asyncio.wait([self._load])

    async def _measure(self, order: Prepare, go: asyncio.Future[int]) -> Done:
        transport: Transport = pkgutil.resolve_name(_TRANSPORTS[order.transport])(order.base_url, order.access)
        clock = MonotonicClock()
        load = _Load(go)
        with FrameAppender(Path(order.log)) as log:
            recorder = without_secrets(log, order.access)
            driver = Driver(
                transport, clock=clock, recorder=recorder, timeout_s=order.timeout_s, phase=order.phase,
                begin=load.begin,
            )  # fmt: skip
            try:
                with measured_loop_lag() as lag:
                    issue = await _drive(driver, order)
                return load.done(driver, issue, lag)
            except asyncio.CancelledError:
                return Done(driver.planned)  # what was in flight has been recorded as cancelled
            finally:
                gc.enable()
                clock.close()
                await transport.close()


class _Load:
    """What happens between ready and done besides driving: the barrier, and what the load cost this process."""

    def __init__(self, go: asyncio.Future[int]) -> None:
        self._go = go
        self._before_s = 0.0

    async def begin(self) -> int:
        """Say ready, wait for the start; from here on no garbage is collected (logs hold no cycles)."""
        gc.collect()
        gc.freeze()
        gc.disable()
        _say(Ready())
        start_ns = await self._go
        self._before_s = time.process_time()
        return start_ns

    def done(self, driver: Driver, issue: Issue, lag: LoopLag) -> Done:
        """Sum up."""
        return Done(
            planned=driver.planned,
            start_ns=issue.start_ns,
            end_ns=issue.end_ns,
            loop_lag=lag.summary(time.monotonic_ns()),
            cpu_s=time.process_time() - self._before_s,
            rss_bytes=peak_rss_bytes(),
        )


async def _drive(driver: Driver, order: Prepare) -> Issue:
    sessions = read_wire(Path(order.sessions))
    match order.load:
        case Open(duration_s, max_in_flight):
            return await driver.open_loop(sessions, duration_s=duration_s, max_in_flight=max_in_flight)
        case Closed(concurrency, duration_s, minimum, ramp_s):
            return await driver.closed_loop(
                sessions, concurrency, duration_s=duration_s, minimum=minimum, ramp_s=ramp_s
            )  # fmt: skip


def peak_rss_bytes() -> int:
    """Peak memory since this program began; ``ru_maxrss`` would begin with the parent's, which fork hands down."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve one parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle; it says stop
    if len(sys.argv) > 1:
        claim_core(int(sys.argv[1]), realtime=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Worker().run())
