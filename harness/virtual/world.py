"""A simulated machine in virtual time: engines, client, telemetry and clock in one process, on one event loop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
import psutil

from bakeoff.engines import Engine, Model, attached
from bakeoff.engines.addresses import Address
from bakeoff.engines.dialects import OpenAiDialect
from bakeoff.engines.errors import EngineDied
from bakeoff.engines.request_shape import plain_dialect, shape_of
from bakeoff.harness.calibration.client_error import Shape
from bakeoff.harness.client import Fleet
from bakeoff.harness.conduct.addresses import RunningAddress, running_addresses
from bakeoff.harness.conduct.engine_start import EngineUnderTest, notes_of, settings_asked
from bakeoff.harness.conduct.replicas import ONE, Replicas
from bakeoff.harness.conduct.world import Fetching, Provenance, Telemetry
from bakeoff.harness.errors import BadExperiment, FaultFailed
from bakeoff.harness.experiment.config import ClientConfig, ModelConfig
from bakeoff.harness.host.clock import run_virtual
from bakeoff.harness.telemetry.loop import Probe
from bakeoff.harness.virtual.engine import VirtualEngine
from bakeoff.harness.virtual.prefix_cache import PrefixCache
from bakeoff.harness.virtual.server import VirtualServer
from bakeoff.harness.virtual.site import Site
from bakeoff.harness.virtual.telemetry import VirtualSampler
from bakeoff.harness.virtual.tokenizer import word_tokenizer
from bakeoff.harness.virtual.worker_host import VirtualEnvironment, VirtualWorkerHost
from bakeoff.results.records import ClientError, EngineDescription, Startup
from bakeoff.results.units import NS_PER_S
from bakeoff.workloads import Tokenizer, tokenizer_at

T = TypeVar("T")
P = ParamSpec("P")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Start of virtual time."""
MEMORY_BYTES = 1 << 34
"""Free memory of the virtual machine."""
EXACT = ClientError(requests=1, chunks_per_s=1e9, by_metric={}, send_lag_s=0.0, cpu_s=0.0)
"""Error of a client whose timestamps are exact, as those of the virtual client are."""


class WorkerLoss(NamedTuple):
    """A worker of the client, counted from 1, that is lost so many seconds after the run has begun."""

    worker: int
    at_s: float
    for_good: bool = False
    """Whether nothing replaces it."""


async def _lose(host: VirtualWorkerHost, loss: WorkerLoss) -> None:
    await asyncio.sleep(loss.at_s)
    await host.lose(for_good=loss.for_good)


class VirtualControl:
    """A `Control` of a virtual server, which cannot be paused.

    Args:
        server: to kill and start.
        start_s: seconds from its start until it listens.
    """

    def __init__(self, server: VirtualServer, start_s: float) -> None:
        self._server = server
        self._start_s = start_s

    async def kill(self, command: Sequence[str], undo: Sequence[str]) -> None:  # noqa: ARG002
        """Kill the server."""
        self._server.crash()

    async def start(self, command: Sequence[str], limit_s: float) -> None:  # noqa: ARG002
        """Start it again."""
        await asyncio.sleep(self._start_s)
        self._server.revive()

    async def find(self) -> Sequence[psutil.Process]:
        """Fail: it has no processes.

        Raises:
            FaultFailed: always.
        """
        raise FaultFailed("virtual engines can be killed, not stopped")

    async def run(self, command: Sequence[str]) -> None:
        """Do nothing."""

    async def is_back(self) -> bool:
        """Whether it is up: only the harness starts it."""
        return False

    async def close(self) -> None:
        """Do nothing: the world stops its servers."""


class VirtualWorld:
    """A :class:`~bakeoff.harness.conduct.world.World` in virtual time: runs take milliseconds and repeat to the byte.

    Args:
        engines: by the labels of the experiments.
        at: models of single addresses by base URL, where they differ from that of their engine.
        seed: of the engines' random draws; the traffic has the experiment's seed.
        client_error: result of every calibration.
        probes: sampled by telemetry.
        losses: workers of the client that are lost in a run.

    Attributes:
        sites: the engines of the last run by label, with the true timings of the requests they served.
    """

    has_reference = False

    def __init__(
        self,
        engines: Mapping[str, VirtualEngine],
        *,
        at: Mapping[str, VirtualEngine] = MappingProxyType({}),
        seed: int = 1,
        client_error: ClientError = EXACT,
        probes: Sequence[Probe] = (),
        losses: Sequence[WorkerLoss] = (),
    ) -> None:
        self._losses = losses
        self._engines = engines
        self._at = at
        self._seed = seed
        self._client_error = client_error
        self._probes = probes
        self._servers: dict[str, VirtualServer] = {}
        self._caches: dict[str, PrefixCache] = {}
        self._runs = 0
        self._ids = 0
        self._ports = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now_s = 0.0
        self.sites: dict[str, Site] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on an event loop in virtual time, which continues from the end of the last run."""
        self._runs += 1
        self.sites = {
            label: Site(engine, f"{self._seed}/{self._runs}/{label}") for label, engine in self._engines.items()
        }
        return run_virtual(self._timed(coroutine), start_s=self._now_s)

    def now_ns(self) -> int:
        """Nanoseconds of virtual time."""
        return round(self._time_s() * NS_PER_S)

    def now_utc(self) -> datetime:
        """Virtual time since :data:`EPOCH`."""
        return EPOCH + timedelta(seconds=self._time_s())

    def run_id(self, name: str) -> str:
        """A run id from virtual time and a counter."""
        self._ids += 1
        return f"{self.now_utc():%Y%m%d-%H%M%S}-{name}-{self._ids:08x}"

    @property
    def cores(self) -> int:
        """One: there are no processes in virtual time."""
        return 1

    def provenance(self) -> Provenance:
        """A virtual machine; no process has pid 0."""
        return Provenance(0, "virtual", None, None, {"cpu": "virtual", "cores": 1, "gpus": None})

    def on_termination(self, callback: Callable[[], object]) -> None:
        """Ignore the callback: there are no signals."""

    async def in_thread(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the work at once, in no virtual time."""
        return work(*args, **kwargs)

    async def model(self, config: ModelConfig, fetching: Fetching) -> Model:  # noqa: ARG002
        """A model without files."""
        return Model(config.name or "virtual")

    def tokenizer(self, config: ModelConfig, model: Model) -> Tokenizer:  # noqa: ARG002
        """The experiment's tokenizer, else one in memory with a token per word."""
        return tokenizer_at(config.tokenizer) if config.tokenizer else word_tokenizer()

    def build(self, engine: Engine) -> dict[str, Any]:  # noqa: ARG002
        """An empty build: virtual engines have no code."""
        return {}

    async def require_listener(self, url: str) -> None:
        """Every address has a virtual server."""

    @contextlib.asynccontextmanager
    async def started(
        self,
        engine: Engine,
        label: str,
        model: Model,
        port: int | None,  # noqa: ARG002
        log: Path,
        *,
        replicas: Replicas = ONE,
    ) -> AsyncGenerator[EngineUnderTest]:
        """Start the virtual engine with this label: one server for each address or replica."""
        if not isinstance(plain_dialect(engine.dialect), OpenAiDialect):
            raise BadExperiment(f"engine '{label}': virtual engines speak OpenAI's API, {engine.adapter} does not")
        site = self._site(label)
        site.starts += 1
        owned = engine.url is None
        addresses = running_addresses(engine) or self._replicas(replicas)
        if owned:
            await self.in_thread(log.touch)
            await self._ready(site)
        first = next(address for address in addresses if address.gets_requests)
        order = [first, *(address for address in addresses if address is not first)]
        servers = {
            address.server.base_url: self._server(address.server.base_url, site, owned=owned, replica=number)
            for number, address in enumerate(order)
        }
        server = servers[first.server.base_url]
        server.start_s = site.engine.start_s if owned else None
        self._servers.update(servers)
        addresses = tuple(
            msgspec.structs.replace(address, server=servers[address.server.base_url]) for address in addresses
        )
        for address in addresses:
            servers[address.server.base_url].is_down = address.is_late
        startup = Startup(
            start_s=server.start_s, host_available_before_bytes=MEMORY_BYTES, host_available_ready_bytes=MEMORY_BYTES
        )
        description = EngineDescription(
            details={"config": site.engine.cache_config},
            label=label, adapter=engine.adapter, version="virtual", url=engine.url, model=model.name,
            addresses=[address.described() for address in addresses if address.label is not None],
            asked=settings_asked(engine), notes=notes_of(engine), request=msgspec.to_builtins(shape_of(engine.dialect)),
        )  # fmt: skip
        try:
            yield EngineUnderTest(engine, addresses, description, startup, None)
        finally:
            for each in servers.values():
                each.stop()

    def control(self, under_test: EngineUnderTest, replica: str | None, log: Path) -> VirtualControl:  # noqa: ARG002
        """Power over a virtual server."""
        server = under_test.servers.get(replica, under_test.server)
        return VirtualControl(self._servers[server.base_url], self._site(under_test.description.label).engine.start_s)

    @contextlib.asynccontextmanager
    async def _client(self, workers: int) -> AsyncGenerator[Fleet]:
        environment = VirtualEnvironment(self._servers)
        hosts = [VirtualWorkerHost(environment, f"virtual-{number}") for number in range(1, workers + 1)]
        losses = [asyncio.ensure_future(_lose(hosts[loss.worker - 1], loss)) for loss in self._losses]
        try:
            yield Fleet(hosts, self.now_ns, self.in_thread)
        finally:
            for loss in losses:
                loss.cancel()

    def fleet(self, client: ClientConfig) -> AbstractAsyncContextManager[Fleet]:
        """A client whose workers are in this process."""
        return self._client(client.workers)

    def sampler(self) -> AbstractAsyncContextManager[Telemetry]:
        """A sampler of the world's probes."""
        return contextlib.nullcontext(VirtualSampler(self._probes))

    async def calibrate(self, fleet: Fleet, shape: Shape, transport: str) -> ClientError:  # noqa: ARG002
        """The client error that the world was given."""
        return self._client_error

    async def _timed(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._loop = asyncio.get_running_loop()
        try:
            return await coroutine
        finally:
            self._now_s, self._loop = self._loop.time(), None

    def _time_s(self) -> float:
        return self._loop.time() if self._loop else self._now_s

    def _new_url(self) -> str:
        self._ports += 1
        return f"http://virtual:{self._ports}"

    def _replicas(self, replicas: Replicas) -> tuple[RunningAddress, ...]:
        servers = ((label, attached(self._new_url())) for label in replicas.labels)
        return tuple(
            RunningAddress(label, Address(server.base_url), server, is_target=True, is_late=label in replicas.late)
            for label, server in servers
        )

    def _site(self, label: str) -> Site:
        if label not in self.sites:
            raise BadExperiment(f"the virtual world has no engine '{label}'; choose from {', '.join(self.sites)}")
        return self.sites[label]

    def _server(self, url: str, site: Site, *, owned: bool, replica: int = 0) -> VirtualServer:
        """A server at an address. Engines at the same address share its prefix cache, if the first of them has one."""
        engine = self._at.get(url, site.engine)
        blocks, tokens = engine.cache_block_tokens, engine.cache_tokens
        cache = None if blocks is None else self._caches.setdefault(url, PrefixCache(blocks, tokens))
        return VirtualServer(url, site, engine, owned=owned, cache=cache, replica=replica)

    async def _ready(self, site: Site) -> None:
        """Wait until the engine is ready.

        Raises:
            EngineDied: it dies first.
        """
        await asyncio.sleep(site.engine.start_s)
        for death in site.engine.deaths:
            if death.after_requests == 0 and death.befalls(site.starts):
                raise EngineDied(f"it did not start (exit status {death.exit_status}): the virtual engine wants this")
