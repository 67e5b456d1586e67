"""The server process of `front_end.py`: the reference engine's own around an engine without a model, or bare writes.

Run as `python -m benchmarks.engine.sides.front_end_server MODEL STREAMS PORT [--bare] [--profile]`.
"""

import argparse
import asyncio
import cProfile
import pstats
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine
from typing import cast

import uvloop

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.serving.core.launch import CoreProcess
from bakeoff.reference_engine.serving.server import serve
from bakeoff.reference_engine.serving.service import Service
from benchmarks.engine.sides.front_end_plan import PAUSE_S, WARM_UP_STEPS, Plan

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: " + b"x" * 240 + b"\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


class FakeCore(CoreProcess):
    """Starts `front_end_core.py`; see `Core`."""

    def __init__(self, config: EngineConfig, number: int) -> None:  # noqa: ARG002 (the signature of `Starter`)
        self.socket, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.engine.sides.front_end_core", str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
            )


class _Bare(asyncio.Protocol):
    """A connection whose client waits for constant bytes."""

    def __init__(self, waiting: "asyncio.Queue[asyncio.Transport]") -> None:
        self._waiting = waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no base class

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 (the base class's signature)
        """Part of `asyncio.Protocol`."""
        self._transport.write(HEAD)
        self._waiting.put_nowait(self._transport)


async def write_bare(plan: Plan, port: int) -> None:
    """Write a constant event to every stream in every step, and nothing else: the least work of any front end."""
    waiting: asyncio.Queue[asyncio.Transport] = asyncio.Queue()
    server = await asyncio.get_running_loop().create_server(lambda: _Bare(waiting), "127.0.0.1", port)
    async with server:
        while True:
            transports = [await waiting.get() for _ in range(plan.num_streams)]
            for number, count in enumerate((WARM_UP_STEPS, plan.num_steps, 1)):
                due_s = time.perf_counter() + (PAUSE_S if number else 0.0)
                for _ in range(count):
                    await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                    for transport in transports:
                        transport.write(CHUNK)
                    due_s += plan.interval_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("streams", type=int)
    parser.add_argument("port", type=int)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    work: Coroutine[object, object, None]
    if options.bare:
        work = write_bare(Plan(options.streams), options.port)
    else:
        config = EngineConfig(
            model=options.model, port=options.port, max_num_seqs=options.streams, num_blocks=1 << 16, drain_timeout_s=0
        )
        work = serve(Service(config, FakeCore))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if not options.profile:
            runner.run(work)
            return
        profile = cProfile.Profile()
        profile.runcall(runner.run, work)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
