"""A fleet on the nodes of a Ray cluster. Ray is imported only here, and only when a fleet is started.

Every node needs the same Python and the same ``bakeoff`` (Ray checks the first, we the second). Like every Ray driver,
this machine must be a node too: ``ray start --address=HEAD:6379 --num-cpus=0`` adds it as one without workers.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from types import ModuleType

from bakeoff.harness.client.fleet.fleet import Fleet
from bakeoff.harness.client.fleet.forwarder import Forwarder
from bakeoff.harness.client.fleet.ray_worker import RayWorker, Untyped, called
from bakeoff.harness.errors import ClientFailed
from bakeoff.installation import how_to_install

_REACH_S = 5.0
"""Limit for a TCP connection to the cluster's head; Ray itself would retry for minutes."""
_CONNECT_S = 60.0
_PLACE_S = 30.0
"""Limit for Ray to find a free core for every worker."""
_CLOSE_S = 10.0
_JOIN = "check the address; this machine must be a node of the cluster: ray start --address=HEAD:PORT --num-cpus=0"


@contextlib.asynccontextmanager
async def ray_fleet(
    address: str, workers: int, cores: Sequence[int] = (), *, measure_always: bool = False
) -> AsyncGenerator[Fleet]:
    """Workers spread evenly over the nodes of a Ray cluster; they end with the block.

    Args:
        address: ``host:port`` of the cluster's head, or ``auto`` for the cluster that this machine is a node of.
        workers: number of processes; each takes one of Ray's CPUs.
        cores: one per worker to pin it to on its node; empty for none.
        measure_always: measure clock offsets even for workers that share our kernel's clock.

    Raises:
        ClientFailed: Ray is not installed, the cluster cannot be reached or has too few free CPUs, or a node runs
            another version.
    """
    ray = _imported()
    async with _connected(ray, address):
        group = await _placed(ray, workers)
        forwarders: dict[int, Untyped] = {}

        def start(number: int, lost: Untyped) -> Untyped:
            if lost is not None:
                ray.kill(lost)  # its CPU comes free
            forwarders[number] = _forwarder(ray, group, number, cores[number] if cores else None)
            return forwarders[number]

        try:
            starts = [functools.partial(start, number) for number in range(workers)]
            hosts = (RayWorker.connected(each, measure_always=measure_always) for each in starts)
            yield Fleet(await asyncio.gather(*hosts))
        finally:
            await asyncio.gather(*(_closed(forwarder) for forwarder in forwarders.values()))
            ray.util.remove_placement_group(group)  # and with it the actors


def _imported() -> ModuleType:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClientFailed(f"client.ray needs Ray, which is not installed: {how_to_install('ray')}") from error


@contextlib.asynccontextmanager
async def _connected(ray: ModuleType, address: str) -> AsyncGenerator[None]:
    """Connect to the cluster; an existing connection is reused and left open."""
    if ray.is_initialized():
        yield
        return
    await asyncio.to_thread(_reach, address)

    left = threading.Event()

    def connect() -> None:
        # Quiet: no output of actors, no messages about a dashboard or a SIGTERM handler.
        ray.init(address=address, namespace="bakeoff", log_to_driver=False, logging_level="ERROR")
        if left.is_set():
            ray.shutdown()  # no caller waits for this connection any more

    try:
        try:
            # Not on the main thread: there Ray would replace our SIGTERM handler, which ends a run in an orderly way.
            await _on_thread(connect, _CONNECT_S)
        except (OSError, RuntimeError, TimeoutError, ValueError) as error:
            message = next(iter(str(error).strip().splitlines()), "no reply")
            raise ClientFailed(f"cannot join the Ray cluster at {address}: {message}; {_JOIN}") from error
        yield
    finally:
        left.set()
        await asyncio.to_thread(ray.shutdown)


def _reach(address: str) -> None:
    """Check that something listens at the address before Ray tries for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        with contextlib.closing(socket.create_connection((host.strip("[]"), int(port)), _REACH_S)):
            return
    except (OSError, ValueError) as error:
        raise ClientFailed(f"no Ray cluster answers at {address} (client.ray); {_JOIN}") from error


async def _on_thread(call: Callable[[], None], limit_s: float) -> None:
    """Run a blocking call that may never return, on a daemon thread that then ends with the process."""
    done: concurrent.futures.Future[None] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001  (raised again where it is awaited)
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(limit_s):
        await asyncio.wrap_future(done)


async def _placed(ray: ModuleType, workers: int) -> Untyped:
    """Reserve one CPU per worker, spread over the nodes."""
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < workers:
        raise ClientFailed(f"the Ray cluster has {cpus} CPUs for {workers} workers; lower client.workers or add nodes")
    group = ray.util.placement_group([{"CPU": 1}] * workers, strategy="SPREAD")
    if not await asyncio.to_thread(group.wait, _PLACE_S):
        ray.util.remove_placement_group(group)
        raise ClientFailed(f"the Ray cluster does not have {workers} free CPUs for the workers; see: ray status")
    return group


async def _closed(forwarder: Untyped) -> None:
    """End a worker; if its node or its actor is gone, it has ended already."""
    with contextlib.suppress(ClientFailed, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await called(forwarder.close.remote(), "a Ray node")


def _forwarder(ray: ModuleType, group: Untyped, number: int, core: int | None) -> Untyped:
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    placement = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
    # Two threads: one waits for the worker's next line, the other serves all other calls.
    actor = ray.remote(num_cpus=1, max_concurrency=2, scheduling_strategy=placement)(Forwarder)
    return actor.remote(core)
