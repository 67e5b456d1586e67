"""A fleet in virtual time: the memory of its head, and what is missing when a worker is lost.

    python -m benchmarks.scale.fleet [--workers 100] [--requests 1000000] [--losses 20]

The head is the product's: it plans, writes and divides the traffic, opens the window, decodes, judges and stores. The
workers run the product's driver too, against simulated servers of their own, each stream with half a chunk a second.
They are in other processes, so that their memory is not the head's: such a process advances its virtual time to the
next reply that the head waits for, and the head then advances its own to that instant.

The losses are those of a random worker at a random instant of a smaller load, each in a run of two repeats. The oracle
is what the simulated server has served: the first trial has every answer that was complete, and none else; it is
INVALID and names the worker; it is measured again, and all later trials have every worker and are VALID.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bakeoff.harness.client import Fleet
from bakeoff.harness.client.fleet.worker_host import WorkerClock
from bakeoff.harness.client.wire.orders import Order, Reply
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.host.clock import run_virtual
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.harness.virtual.served import Ending
from bakeoff.harness.virtual.server import VirtualServer
from bakeoff.harness.virtual.site import Site
from bakeoff.harness.virtual.worker_host import VirtualEnvironment, VirtualWorkerHost
from bakeoff.harness.virtual.world import WorkerLoss
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.metrics.throughput import requests_in_flight
from bakeoff.results.records import Verdict
from benchmarks.bars import Bars

CHUNKS, GAP_S = 10, 2.0
ENGINE = VirtualEngine(service=PerToken(Fixed(GAP_S), Fixed(GAP_S)))
MAX_HEAD_MIB = 1024
PARTS = 5.0
"""Requests of a trial over those in flight at a time: begun, a ramp and a window of that length and more, a tail."""
LOSS_STREAMS, LOSS_UNTIL_S = 2_000, 60.0


class Ask(NamedTuple):
    """To a process of workers: an order for one of them, or None to be sent its next reply."""

    worker: int
    order: Order | None


class Told(NamedTuple):
    """A worker's reply, and the virtual time."""

    worker: int
    reply: Reply
    now_s: float


class Servers(dict[str, VirtualServer]):
    """A simulated server for every address that the head names."""

    def __missing__(self, url: str) -> VirtualServer:
        self[url] = VirtualServer(url, Site(ENGINE, "fleet"), ENGINE, owned=True, cache=None)
        return self[url]


def serve(connection: Connection, workers: int) -> None:
    """Run workers in virtual time until the head closes the connection."""
    run_virtual(_serve(connection, [VirtualWorkerHost(VirtualEnvironment(Servers())) for _ in range(workers)]))


async def _serve(connection: Connection, hosts: Sequence[VirtualWorkerHost]) -> None:
    now_s = asyncio.get_running_loop().time
    while True:
        try:
            ask: Ask = connection.recv()  # virtual time stands still
        except EOFError:
            return
        host = hosts[ask.worker]
        if ask.order is not None:
            await host.send(ask.order)
        else:
            connection.send(Told(ask.worker, await host.reply(), now_s()))


class Workers:
    """A process of workers, as the head sees it."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, workers), daemon=True)
        self.process.start()
        other.close()
        self._told: dict[int, Told] = {}

    def told(self, worker: int) -> Told:
        """Wait for a worker's reply; those of others are kept."""
        while worker not in self._told:
            told: Told = self.connection.recv()
            self._told[told.worker] = told
        return self._told.pop(worker)


class RemoteHost:
    """A `WorkerHost` in another process."""

    pid = 0
    clock = WorkerClock()

    def __init__(self, workers: Workers, number: int, host: str) -> None:
        self._workers, self._number, self.host = workers, number, host

    async def send(self, order: Order) -> None:
        """Execute an order."""
        self._workers.connection.send(Ask(self._number, order))

    async def reply(self) -> Reply:
        """The next reply."""
        self._workers.connection.send(Ask(self._number, None))
        await asyncio.sleep(0)  # so that all workers are asked before one is waited for
        told = self._workers.told(self._number)
        if (wait_s := told.now_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(wait_s)
        return told.reply

    async def renew(self) -> None:
        """Do nothing: it is never lost."""

    async def stage(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    def remote_path(self, path: Path) -> str:
        """The path itself."""
        return str(path)

    async def collect(self, path: Path) -> None:
        """Do nothing: the file is already there."""


class FleetWorld(VirtualWorld):
    """A virtual world whose workers are in other processes.

    Attributes:
        measured_mib: most memory that this process has held until the run's last trial was stored.
    """

    def __init__(self, processes: int) -> None:
        super().__init__({"a": ENGINE})
        self._processes = processes
        self.measured_mib = 0.0

    @contextlib.asynccontextmanager
    async def _client(self, workers: int) -> AsyncGenerator[Fleet]:
        each = -(-workers // self._processes)
        processes = [Workers(each) for _ in range(self._processes)]
        hosts = [
            RemoteHost(processes[number // each], number % each, f"virtual-{number + 1}") for number in range(workers)
        ]
        try:
            yield Fleet(hosts, self.now_ns, self.in_thread)
        finally:
            self.measured_mib = peak_mib()
            for process in processes:
                process.connection.close()
                process.process.join()


def peak_mib() -> float:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def experiment(workers: int, streams: float, repeats: int) -> Experiment:
    return virtual_experiment(
        ["a"], [{"rate_per_s": streams / (CHUNKS * GAP_S), "arrival": "poisson"}], repeats=repeats,
        client={"workers": workers},
        workload={"name": "random", "options": {"input_tokens": 8, "output_tokens": CHUNKS, "spread": 0.0}},
        trial={"duration_s": CHUNKS * GAP_S, "ramp_s": 0.0, "warm_up_s": 0.0},
    )  # fmt: skip


def measure(workers: int, requests: int, processes: int, bars: Bars) -> None:
    """One trial of so many requests, begun sessions, ramp and tail included."""
    begun_mib, start_s, world = peak_mib(), time.monotonic(), FleetWorld(processes)
    with tempfile.TemporaryDirectory() as folder:
        run = run_in(world, experiment(workers, requests / PARTS, 1), Path(folder))
        (trial,) = run.finished
        print(
            f"{trial.record.verdict.value}: {len(trial.requests):,} requests of {len(trial.record.clients)} workers, "
            f"{requests_in_flight(trial.load, trial.window).value or 0:,.0f} in flight, "
            f"{time.monotonic() - start_s:,.0f} s"
        )
        print(
            f"head: {begun_mib:,.0f} MiB before the run, {world.measured_mib:,.0f} MiB while it measured, "
            f"{peak_mib():,.0f} MiB with the run's results"
        )
    bars.add("workers", len(trial.record.clients), ">=", workers)
    bars.add("requests", len(trial.requests), ">=", requests)
    bars.add("head_mib", world.measured_mib, "<=", MAX_HEAD_MIB)


def lose(workers: int, seed: int) -> bool:
    """Whether a run in which a worker is lost misses its share, names it, and goes on."""
    rng = random.Random(seed)
    loss = WorkerLoss(rng.randint(1, workers), rng.uniform(1.0, LOSS_UNTIL_S))
    world = VirtualWorld({"a": ENGINE}, losses=[loss])
    with tempfile.TemporaryDirectory() as folder:
        run = run_in(world, experiment(workers, LOSS_STREAMS, 2), Path(folder))
        cut, *others = sorted(run.finished, key=lambda trial: trial.record.order)
        complete = sum(
            each.trial == cut.record.id and each.ending is Ending.COMPLETE for each in world.sites["a"].served
        )  # fmt: skip
        findings = cut.record.invalidating
        holds = (
            [finding.code for finding in findings] == [FindingCode.CLIENT_LOST]
            and f"virtual-{loss.worker} " in str(findings[0].parameters["detail"])
            and int(cut.requests.is_ok.sum()) == complete
            and len(cut.requests) == complete + int(cut.requests.is_cancelled.sum())
            and [(each.record.verdict, len(each.record.clients)) for each in others] == [(Verdict.VALID, workers)] * 2
        )
    print(f"worker {loss.worker} lost after {loss.at_s:.1f} s: {complete:,} complete answers, {'ok' if holds else cut}")
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2, help="of workers")
    parser.add_argument("--losses", type=int, default=20)
    options = parser.parse_args()
    bars = Bars()
    measure(options.workers, options.requests, options.processes, bars)
    if options.losses:
        holding = sum(lose(options.workers, seed) for seed in range(options.losses))
        bars.add("losses_named", holding, "==", options.losses)
    bars.finish()


if __name__ == "__main__":
    main()
