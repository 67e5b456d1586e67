"""The truth server's process; ends when stdin closes. A line on stdin is answered by the true times so far."""

import asyncio
import json
import sys

import msgspec
import uvloop

from harness.realtime import claim_core
from harness.truth.schedule import Schedule
from harness.truth.server import TruthServer


async def _serve(schedule: Schedule, port: int) -> None:
    server = TruthServer(schedule)
    ready = asyncio.Event()
    pump = asyncio.create_task(server.run(port, ready))
    await ready.wait()
    _say(b"ready")
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while await orders.readline():
        _say(msgspec.json.encode(server.answered))
    pump.cancel()


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve what ``argv[1]`` (JSON: schedule, port, core) says."""
    order = json.loads(sys.argv[1])
    if order["core"] is not None:
        claim_core(order["core"], realtime=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(msgspec.convert(order["schedule"], Schedule), order["port"]))


if __name__ == "__main__":
    main()
