"""One client worker: a process that only measures.

It handles bytes and times, and has no knowledge of engines or workloads. It reads orders as lines on stdin
(:mod:`bakeoff.harness.client.wire.orders`). It ends when stdin closes, so it is never orphaned, and then records the
requests in flight as cancelled.

Run as ``python -m bakeoff.harness.client.worker [CORE]`` to pin it to a core. It runs at real-time priority where the
system allows that.
"""

import asyncio
import gc
import os
import pkgutil
import resource
import signal
import sys
import time

import msgspec
import uvloop

from bakeoff import system
from bakeoff.harness.client.wire.orders import ALIVE_S, Alive, Done, Order, Prepare, Reply
from bakeoff.harness.client.wire.transport import CONNECT_S, Transport
from bakeoff.harness.client.worker.driver import Issue
from bakeoff.harness.client.worker.load_runner import LoadRunner
from bakeoff.harness.client.worker.loop_lag import LoopLag
from bakeoff.harness.host.clock import Clock, MonotonicClock
from bakeoff.harness.host.realtime import claim_core, raise_priority

_MAX_OPEN_FILES = 1 << 20
_MACOS_OPEN_FILES = 10_240
"""``OPEN_MAX``, which macOS grants even where its hard limit says more."""
_TRANSPORTS = {
    "http": "bakeoff.harness.client.wire.http:HttpTransport",
    "aiohttp": "bakeoff.harness.client.wire.aiohttp_transport:AiohttpTransport",
}
"""By the name in experiments; only the one in use is imported, since importing aiohttp takes 0.2 s."""


class _Process:
    """This process as the environment of its loads."""

    def transport(self, order: Prepare, base_url: str) -> Transport:
        """A transport over sockets."""
        kind = pkgutil.resolve_name(_TRANSPORTS[order.transport])
        connect_s = min(order.timeout_s, CONNECT_S)
        transport: Transport = kind(base_url, order.access, order.replica_header, connect_s=connect_s)
        return transport

    def clock(self) -> MonotonicClock:
        """The kernel's clock."""
        return MonotonicClock()

    def meter(self, clock: Clock) -> "_Meter":
        """A meter of CPU time, memory and event loop lateness."""
        return _Meter(LoopLag(clock))


class _Meter:
    def __init__(self, lag: LoopLag) -> None:
        self._lag = lag
        self._before_s = time.process_time()

    def begin(self) -> None:
        """Start measuring, with garbage collection off: a collection would delay stamps, and logs hold no cycles."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._before_s = time.process_time()
        self._lag.start()

    def done(self, planned: int, issue: Issue) -> Done:
        """The result with its costs."""
        self._lag.stop()
        return Done(
            planned=planned,
            start_ns=issue.start_ns,
            end_ns=issue.end_ns,
            loop_lag=self._lag.summary(time.monotonic_ns()),
            cpu_s=time.process_time() - self._before_s,
            rss_bytes=system.peak_rss_bytes(),
        )

    def close(self) -> None:
        """Switch garbage collection on again."""
        gc.enable()


async def _serve() -> None:
    """Execute orders until stdin closes."""
    loads, decode = LoadRunner(_Process(), _print), msgspec.json.Decoder(Order).decode
    orders = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    alive = asyncio.create_task(_report_alive(loads))
    while line := await orders.readline():
        await loads.execute(decode(line))
    alive.cancel()
    await loads.stop()


async def _report_alive(loads: LoadRunner) -> None:
    while True:
        await asyncio.sleep(ALIVE_S)
        if loads.is_busy:
            _print(Alive(loads.silence(ALIVE_S)))


def allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each request in flight has a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if sys.platform == "darwin":
        wanted = min(wanted, _MACOS_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _print(reply: Reply) -> None:
    try:
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the harness was killed; the interpreter would complain again at its end
        os._exit(1)


def main() -> None:
    """Run one worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness handles Ctrl-C and sends Stop
    if len(sys.argv) > 1:
        claim_core(int(sys.argv[1]))
    raise_priority()
    allow_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
