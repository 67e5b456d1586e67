"""A fleet on the nodes of a Ray cluster; Ray is imported here, and only when it is asked for.

Every node needs the same Python and the same ``bakeoff`` (Ray checks the first, we the second). This machine must be a
node too, as every Ray driver's: ``ray start --address=HEAD:6379 --num-cpus=0`` makes it one that gets no worker.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from types import ModuleType

from harness.client.fleet import Fleet
from harness.client.ray_worker import RayWorker, Untyped, called
from harness.client.relay import Relay
from harness.errors import ClientFailed

_REACH_S = 5.0
"""For a TCP connection to the cluster's head; Ray itself would go on trying for minutes."""
_CONNECT_S = 60.0
_PLACE_S = 30.0
"""For Ray to find a free core for every worker."""
_CLOSE_S = 10.0
_JOIN = "check the address; this machine must be a node of the cluster: ray start --address=HEAD:PORT --num-cpus=0"


@contextlib.asynccontextmanager
async def ray_fleet(
    address: str, workers: int, cores: Sequence[int] = (), *, measure_always: bool = False
) -> AsyncGenerator[Fleet]:
    """Workers on the nodes of a Ray cluster, one on each before any gets a second; they end with the block.

    Args:
        address: ``host:port`` of the cluster's head, or ``auto`` for the cluster that this machine is a node of.
        workers: how many; each takes one of Ray's CPUs.
        cores: one for each worker to be pinned to on its node; empty for none.
        measure_always: compare clocks even where both are the same kernel's.

    Raises:
        ClientFailed: Ray is not installed, the cluster cannot be reached or has no room, or a node differs from here.
    """
    ray = _imported()
    async with _connected(ray, address):
        group = await _placed(ray, workers)
        relays = [_relay(ray, group, number, cores[number] if cores else None) for number in range(workers)]
        try:
            greetings = (RayWorker.greeted(relay, measure_always=measure_always) for relay in relays)
            yield Fleet(await asyncio.gather(*greetings))
        finally:
            await asyncio.gather(*(_closed(relay) for relay in relays))
            ray.util.remove_placement_group(group)  # and with it the actors


def _imported() -> ModuleType:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClientFailed("client.ray needs Ray, which is not installed: pip install 'bakeoff[ray]'") from error


@contextlib.asynccontextmanager
async def _connected(ray: ModuleType, address: str) -> AsyncGenerator[None]:
    """Be a driver of the cluster; a connection that was there before is used and left alone."""
    if ray.is_initialized():
        yield
        return
    await asyncio.to_thread(_reach, address)

    def connect() -> None:
        # quiet: no lines of actors on our terminal, no word about a dashboard or a SIGTERM handler
        ray.init(address=address, namespace="bakeoff", log_to_driver=False, logging_level="ERROR")

    try:
        # not on the main thread: there Ray would take SIGTERM over, which ends a run in good order
        await _on_thread(connect, _CONNECT_S)
    except (OSError, RuntimeError, TimeoutError, ValueError) as error:
        words = next(iter(str(error).strip().splitlines()), "no answer")
        raise ClientFailed(f"the Ray cluster at {address} does not take us: {words}; {_JOIN}") from error
    try:
        yield
    finally:
        await asyncio.to_thread(ray.shutdown)


def _reach(address: str) -> None:
    """Knock before Ray does."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        with contextlib.closing(socket.create_connection((host.strip("[]"), int(port)), _REACH_S)):
            return
    except (OSError, ValueError) as error:
        raise ClientFailed(f"nothing answers at {address}, where client.ray says a Ray cluster is; {_JOIN}") from error


async def _on_thread(call: Callable[[], None], limit_s: float) -> None:
    """Run a blocking call that may never return; its thread then dies with the process."""
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
    """One CPU for each worker, spread over the nodes."""
    there = int(ray.cluster_resources().get("CPU", 0))
    if there < workers:
        raise ClientFailed(f"the Ray cluster has {there} CPUs for {workers} workers; lower client.workers or add nodes")
    group = ray.util.placement_group([{"CPU": 1}] * workers, strategy="SPREAD")
    if not await asyncio.to_thread(group.wait, _PLACE_S):
        ray.util.remove_placement_group(group)
        raise ClientFailed(f"the Ray cluster has no {workers} free CPUs for the workers; see: ray status")
    return group


async def _closed(relay: Untyped) -> None:
    """End a worker; where its node or its actor is gone, it has ended."""
    with contextlib.suppress(ClientFailed, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await called(relay.close.remote(), "a Ray node")


def _relay(ray: ModuleType, group: Untyped, number: int, core: int | None) -> Untyped:
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    spot = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
    # two threads: one waits for the worker's next line, the other serves everything else
    actor = ray.remote(num_cpus=1, max_concurrency=2, scheduling_strategy=spot)(Relay)
    return actor.remote(core)
