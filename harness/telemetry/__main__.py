"""The sampler process: executes :mod:`bakeoff.harness.telemetry.orders` until stdin closes, so it is never orphaned."""

import contextlib
import itertools
import os
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import msgspec

from bakeoff.harness.host.amd import AmdGpu
from bakeoff.harness.host.cpu import CpuProbe
from bakeoff.harness.host.gpu import Gpu, open_gpus, visible_to
from bakeoff.harness.host.realtime import lower_priority
from bakeoff.harness.telemetry.amd_probe import AmdProbe
from bakeoff.harness.telemetry.exporter import ExporterProbe
from bakeoff.harness.telemetry.gpu_probe import GpuProbe
from bakeoff.harness.telemetry.host import HostProbe, ProcessProbe, shared_memory
from bakeoff.harness.telemetry.loop import Probe, Ticker, sample
from bakeoff.harness.telemetry.orders import INTERVAL_NS, Include, Mark, Order, Reply, Sample
from bakeoff.harness.telemetry.server import ServerProbe
from bakeoff.results.errors import NotWritable
from bakeoff.results.files.jsonl import Appender
from bakeoff.results.ranges import within_range
from bakeoff.results.records import TelemetryRecord


def main() -> int:
    """Execute orders until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness handles Ctrl-C and closes our stdin
    lower_priority()
    gpus, no_gpu = open_gpus()
    host = HostProbe()
    # Unbuffered: of two orders that arrive together, a buffer would hold the second, which does not wake select.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        orders = map(msgspec.json.Decoder(Order).decode, iter(stdin.readline, b""))
        order = next(orders, None)
        while order is not None:
            _print(order.number)
            if isinstance(order, Sample) and order.log is not None:
                own = visible_to(order.gpus, gpus)
                reason = no_gpu or (None if own else "the engine may not use any GPU of this machine")
                with contextlib.ExitStack() as stack:
                    trees = [stack.enter_context(contextlib.closing(tree)) for tree in _process_probes(order)]
                    probes = [stack.enter_context(contextlib.closing(_probe_of(gpu))) for gpu in own]
                    order = _sample(order, orders, [host, *trees], probes, reason)
            else:
                order = next(orders, None)
    return 0


def _print(reply: Reply) -> None:
    """Write the reply in one short write, so that two threads may call this."""
    os.write(1, msgspec.json.encode(reply) + b"\n")


def _probe_of(gpu: Gpu | AmdGpu) -> GpuProbe | AmdProbe:
    return GpuProbe(gpu) if isinstance(gpu, Gpu) else AmdProbe(gpu)


def _process_probes(order: Sample) -> list[ProcessProbe]:
    client = [ProcessProbe("client", order.client_pids)] if order.client_pids else []
    engine = [ProcessProbe("engine", order.engine_pids)] if order.engine_pids else []
    return [*engine, *client]


def _sample(
    order: Sample,
    orders: Iterator[Order],
    probes: Sequence[Probe],
    gpus: Sequence[GpuProbe | AmdProbe],
    no_gpu: str | None,
) -> Order | None:
    """Sample until an order arrives that ends it; returns it, or None at the end of stdin."""
    assert order.log is not None
    roots, engine = list(order.engine_pids), [each for each in probes if isinstance(each, ProcessProbe)]
    engine = engine[:1] if roots else []  # the client's come after it
    cpu = CpuProbe(order.own.pids, order.own.unknown)
    probes = [cpu, *probes, *gpus]
    with contextlib.closing(cpu), contextlib.closing(_Samples(Path(order.log))) as log:
        ticker = Ticker(INTERVAL_NS, time.monotonic_ns())
        readings = _Readings(len(order.servers))
        servers = [ServerProbe(page, log.append, readings.done) for page in order.servers]
        sampled = {probe.gpu.uuid: probe.gpu.source for probe in gpus} if order.exporters else {}
        exporters = [ExporterProbe(page, log.append, sampled) for page in order.exporters]
        try:
            while isinstance(following := _tick(orders, probes, ticker, log.append), Mark | Include):
                if isinstance(following, Include):
                    roots.append(following.pid)
                    for tree in engine:
                        tree.add(following.pid)
                    _print(following.number)
                    continue
                for server in servers:
                    server.mark(following)
                if not servers:
                    _print(following.number)
        finally:
            for server in servers:
                server.stop()
            for exporter in exporters:
                exporter.stop()
        t_ns = time.monotonic_ns()
        for record in itertools.chain(cpu.read(t_ns), *(gpu.finish(t_ns) for gpu in gpus)):  # since the last tick
            log.append(record)
        if roots:
            log.append(shared_memory(time.monotonic_ns(), roots))
        reasons = {"nvml": no_gpu} if no_gpu else {}
        log.append(TelemetryRecord(time.monotonic_ns(), "sampler", {"missed_ticks": ticker.missed}, reasons))
    return following


def _tick(
    orders: Iterator[Order], probes: list[Probe], ticker: Ticker, emit: Callable[[TelemetryRecord], None]
) -> Order | None:
    """Read the probes at each tick until there is an order; returns it, or None at the end of stdin."""
    while not select.select([0], [], [], ticker.wait_ns(time.monotonic_ns()) / 1e9)[0]:
        sample(probes, ticker, time.monotonic_ns, emit)
    return next(orders, None)


class _Readings:
    """Replies to a mark when every page has been read for it.

    Args:
        pages: how many there are, each read in a thread of its own.
    """

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._done: Counter[int] = Counter()
        self._lock = threading.Lock()

    def done(self, number: int) -> None:
        """Note that one page was read for the mark with that number."""
        with self._lock:
            self._done[number] += 1
            is_last = self._done[number] == self._pages
        if is_last:
            _print(number)


class _Samples:
    """The log of samples. After a failed write it reports the error once and drops all further samples.

    The error goes to the harness as a reply: the probes cannot handle it.
    """

    def __init__(self, path: Path) -> None:
        self._log: Appender | None = None
        with self._reported():
            self._log = Appender(path)

    def append(self, record: TelemetryRecord) -> None:
        """Write one record."""
        if self._log:
            with self._reported():
                self._log.append(within_range(record))

    def close(self) -> None:
        """Sync and close the file."""
        if self._log:
            with self._reported():
                self._log.close()

    @contextlib.contextmanager
    def _reported(self) -> Generator[None]:
        try:
            yield
        except NotWritable as error:
            self._log = None
            _print(str(error))


if __name__ == "__main__":
    sys.exit(main())
