"""The sampler's process. Orders come as JSON lines on stdin; it ends when stdin closes, so it is never orphaned.

Orders: ``{"log": "/path/telemetry.jsonl", "engine_pid": 123, "client_pids": [45]}`` starts sampling into that file,
``{"log": null}`` stops it. Each order is answered by one line on stdout once it holds.
"""

import select
import signal
import sys
import time
from pathlib import Path

import msgspec

from harness.telemetry.gpu import open_gpus
from harness.telemetry.host import HostProbe, ProcessProbe
from harness.telemetry.loop import Probe, Ticker, sample
from results.jsonl import Appender
from results.records import TelemetryRecord

INTERVAL_NS = 100_000_000


class Order(msgspec.Struct, frozen=True):
    """What to sample, into which file."""

    log: str | None
    engine_pid: int | None = None
    client_pids: list[int] = []


def main() -> int:
    """Obey orders until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle; it closes our stdin
    gpus, no_gpu = open_gpus()
    host = HostProbe()
    decode = msgspec.json.Decoder(Order).decode
    order = Order(None)
    while True:
        line = _sample_until_line(order, [host, *gpus, *_process_probes(order)], no_gpu)
        if not line:
            return 0
        order = decode(line)
        sys.stdout.write("ok\n")
        sys.stdout.flush()


def _process_probes(order: Order) -> list[Probe]:
    client: list[Probe] = [ProcessProbe("client", order.client_pids)] if order.client_pids else []
    engine: list[Probe] = [ProcessProbe("engine", [order.engine_pid])] if order.engine_pid is not None else []
    return [*engine, *client]


def _sample_until_line(order: Order, probes: list[Probe], no_gpu: str | None) -> str:
    """Sample until an order arrives; returns it, or an empty string at the end of stdin."""
    if order.log is None:
        return sys.stdin.readline()
    with Appender(Path(order.log)) as log:
        ticker = Ticker(INTERVAL_NS, time.monotonic_ns())
        while not select.select([sys.stdin], [], [], ticker.wait_ns(time.monotonic_ns()) / 1e9)[0]:
            sample(probes, ticker, time.monotonic_ns, log.append)
        reasons = {"nvml": no_gpu} if no_gpu else {}
        log.append(TelemetryRecord(time.monotonic_ns(), "sampler", {"missed_ticks": ticker.missed}, reasons))
    return sys.stdin.readline()


if __name__ == "__main__":
    sys.exit(main())
