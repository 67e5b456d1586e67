"""One client worker: a process that measures and does nothing else.

It knows bytes and times, neither engines nor workloads. Orders come as lines on stdin (:mod:`harness.client.orders`);
it ends when stdin closes, so it is never orphaned, and then records what was in flight as cancelled.

Run as ``python -m harness.client [CORE]``: with a core, it is pinned to it. It runs at real-time priority where the
system allows that.
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

from harness.client.driver import Issue
from harness.client.loads import Loads
from harness.client.loop_lag import LoopLag
from harness.client.orders import Answer, Done, Order, Prepare
from harness.client.transport import Transport
from harness.host.clock import Clock, MonotonicClock
from harness.host.realtime import claim_core, go_first

_TRANSPORTS = {
    "http": "harness.client.http:HttpTransport",
    "aiohttp": "harness.client.aiohttp_transport:AiohttpTransport",
}
"""By the name that experiments use; only the one that is asked for is imported, since aiohttp alone takes 0.2 s."""


class _Process:
    """This process, as the host of a worker."""

    def transport(self, order: Prepare) -> Transport:
        """Over sockets."""
        made: Transport = pkgutil.resolve_name(_TRANSPORTS[order.transport])(order.base_url, order.access)
        return made

    def clock(self) -> MonotonicClock:
        """The kernel's."""
        return MonotonicClock()

    def meter(self, clock: Clock) -> "_Meter":
        """Of CPU, memory and lateness."""
        return _Meter(LoopLag(clock))


class _Meter:
    def __init__(self, lag: LoopLag) -> None:
        self._lag = lag
        self._before_s = time.process_time()

    def begin(self) -> None:
        """From here on no garbage is collected (logs hold no cycles)."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._before_s = time.process_time()
        self._lag.start()

    def done(self, planned: int, issue: Issue) -> Done:
        """What the load has cost."""
        self._lag.stop()
        return Done(
            planned=planned,
            start_ns=issue.start_ns,
            end_ns=issue.end_ns,
            loop_lag=self._lag.summary(time.monotonic_ns()),
            cpu_s=time.process_time() - self._before_s,
            rss_bytes=peak_rss_bytes(),
        )

    def close(self) -> None:
        """Garbage is collected again."""
        gc.enable()


async def _serve() -> None:
    """Obey until stdin closes."""
    loads, decode = Loads(_Process(), _say), msgspec.json.Decoder(Order).decode
    orders = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        await loads.obey(decode(line))
    await loads.stop()


def peak_rss_bytes() -> int:
    """Peak memory since this program began; ``ru_maxrss`` would begin with the parent's, which fork hands down."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve one parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle; it says stop
    if len(sys.argv) > 1:
        claim_core(int(sys.argv[1]))
    go_first()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
