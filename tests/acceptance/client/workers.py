"""Throughput grows with workers, and Ray nodes send the same as one process.

Part one: one worker, then two, read as many chunks as they can, each from its own truth server that writes as fast as
it can. With four cores every process gets its own. With fewer, a control group (as root) limits each worker to 1/25 of
a core, so that two workers and two servers fit on two cores and the workers alone are the bottleneck. Part two: the
same plan through one process and through two nodes of a Ray cluster on this machine, compared record by record.
``--only`` selects a part.
"""

import argparse
import contextlib
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Closed, Fleet, LoadResult, Open, local_fleet
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.fleet.local_worker import LocalWorker
from bakeoff.harness.client.fleet.ray_fleet import ray_fleet
from bakeoff.harness.client.wire.orders import Order, Prepare, Target
from bakeoff.harness.client.wire.plan import WireSession, wire_sessions
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import StreamEnd, StreamRecord
from bakeoff.workloads import PlannedSession, Poisson, Session, Turn
from benchmarks.bars import Bars
from tests.harness.essence import essence
from tests.harness.ray_nodes import ray_nodes

STREAMS, TOKENS, DURATION_S, ROUNDS = 64, 512, 3.0, 3
"""Streams are per worker."""
CPU_SHARE, PERIOD_US = 0.04, 25_000
"""Limit on each worker if cores are few: 1 ms of every 25 ms."""
RATE, OPEN_S, CLOSED, SLOTS = 200.0, 5.0, 1000, 32
"""Part two: rate and seconds of the open loop, sessions and slots of the closed loop."""


class WorkerWithServer(LocalWorker):
    """A worker that sends to its own server, whatever address the order has."""

    url = ""

    async def send(self, order: Order) -> None:
        """See :class:`~bakeoff.harness.client.fleet.worker_host.WorkerHost`."""
        await super().send(
            msgspec.structs.replace(order, targets=(Target(self.url),)) if isinstance(order, Prepare) else order
        )


async def run_load(
    fleet: Fleet, url: str, share: Closed | Open, sessions: Iterator[WireSession]
) -> tuple[LoadResult, list[StreamRecord]]:
    """Run one load; returns its result and its records in plan order."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
        folder = TrialFolder(Path(scratch))
        result = await fleet.load(LoadOrder((Target(url),), share, timeout_s=60), sessions, folder)
        return result, sorted(folder.read_streams(), key=lambda record: record.index)


def sessions(count: int, tokens: Sequence[int], offsets_s: Iterator[float] | None = None) -> Iterator[WireSession]:
    planned = (
        PlannedSession(
            Session(str(i), (Turn(1, tokens[i % len(tokens)], prompt="a"),)), next(offsets_s) if offsets_s else None
        )
        for i in range(count)
    )
    return wire_sessions(planned, ReferenceDialect(), "truth")


async def chunks_per_s(workers: int, cores: Sequence[int] | None) -> float:
    """Chunks per second that the workers read.

    Args:
        workers: number of workers.
        cores: the workers' cores, then the servers'; None limits each worker to a share of a core instead.
    """
    async with contextlib.AsyncExitStack() as stack:
        hosts = []
        for number in range(workers):
            worker_core, server_core = (cores[number], cores[workers + number]) if cores else (None, None)
            server = await stack.enter_async_context(truth_process(Schedule(ttft_s=0.0, itl_s=0.0), core=server_core))
            host = await stack.enter_async_context(WorkerWithServer.started(worker_core))
            if cores is None:
                assert host.pid is not None
                stack.enter_context(limited_cpu(host.pid))
            host.url = server.url
            hosts.append(host)
        share = Closed(STREAMS * workers, DURATION_S)
        result, records = await run_load(Fleet(hosts), "", share, sessions(20_000 * workers, [TOKENS]))
    whole = [record for record in records if record.end is StreamEnd.COMPLETE]
    elapsed_s = (max(r.ended_ns for r in whole) - min(r.planned_ns for r in whole)) / 1e9
    busy = [client.cpu_s / elapsed_s for client in result.clients]
    rate = len(whole) * TOKENS / elapsed_s
    print(f"{workers} worker(s): {rate:,.0f} chunks/s, cores {', '.join(f'{share:.0%}' for share in busy)} busy")
    return rate


@contextlib.contextmanager
def limited_cpu(pid: int) -> Iterator[None]:
    """Limit a process to :data:`CPU_SHARE` of a core while the block runs, through cgroups v1 or v2."""
    cpu = Path("/sys/fs/cgroup/cpu")
    root = cpu if cpu.is_dir() else Path("/sys/fs/cgroup")
    group = root / f"bakeoff-{pid}"
    quota_us = round(CPU_SHARE * PERIOD_US)
    group.mkdir()
    if root == cpu:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def scaling(bars: Bars) -> None:
    allowed_cores = sorted(os.sched_getaffinity(0))
    cores = allowed_cores if len(allowed_cores) >= 4 else None
    os.sched_setaffinity(0, set(allowed_cores[4:] or allowed_cores))
    ratios = []
    for _ in range(ROUNDS):
        single = uvloop.run(chunks_per_s(1, cores))
        ratios.append(uvloop.run(chunks_per_s(2, cores)) / single)
    os.sched_setaffinity(0, allowed_cores)
    bars.add("chunks_per_s_two_workers_over_one", statistics.median(ratios), ">=", 1.7)


async def both_loads(fleet: Fleet) -> list[list[tuple[object, ...]]]:
    """The records of an open and a closed loop, without fields that depend on the sender."""
    offsets = list(itertools.takewhile(lambda offset_s: offset_s < OPEN_S, Poisson(RATE).offsets_s("3")))
    tokens = [3, 17, 64]
    loads = []
    async with truth_process(Schedule(ttft_s=0.01, itl_s=0.001)) as server:
        for share, plan in (
            (Open(OPEN_S), sessions(len(offsets), tokens, iter(offsets))),
            (Closed(SLOTS, 60.0), sessions(CLOSED, tokens)),
        ):
            result, records = await run_load(fleet, server.url, share, plan)
            loads.append(essence(result, records, is_open=isinstance(share, Open)))
    return loads


async def nodes(bars: Bars) -> None:
    async with local_fleet(1) as fleet:
        local_loads = await both_loads(fleet)
    with ray_nodes(2) as cluster:
        async with ray_fleet(cluster.address, 2) as fleet:
            ray_loads = await both_loads(fleet)
    for name, local, ray in zip(("open", "closed"), local_loads, ray_loads, strict=True):
        different = sum(a != b for a, b in itertools.zip_longest(local, ray))
        print(f"{name} loop: {len(local)} records of one process, {len(ray)} of two Ray nodes, {different} different")
        bars.add(f"records_that_differ_on_two_ray_nodes_{name}", different, "==", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("scaling", "ray"), help="one part")
    only = parser.parse_args().only
    bars = Bars()
    if only != "ray":
        scaling(bars)
    if only != "scaling":
        uvloop.run(nodes(bars))
    bars.finish()


if __name__ == "__main__":
    main()
