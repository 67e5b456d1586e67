"""Starts an engine and records its description, its start time and the memory that it took before any request."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bakeoff.engines import Engine, Launch, Model, Server, attached, launched, pick_port
from bakeoff.engines.base import SPAN_ENDPOINT, ReportsSettings
from bakeoff.engines.errors import EngineDied
from bakeoff.engines.request_shape import shape_of
from bakeoff.engines.secrets import masked_data
from bakeoff.harness.conduct.addresses import RunningAddress, description_of, processes_at, running_addresses
from bakeoff.harness.conduct.replicas import ONE, Part, Replicas, death_of, launches_of, own_parts, replicas_started
from bakeoff.harness.conduct.spans import SpanReceiver, receiving
from bakeoff.harness.experiment.fingerprint import build_of_engine
from bakeoff.harness.host.gpu import open_gpus, used_bytes, visible_to
from bakeoff.harness.telemetry import OwnProcesses
from bakeoff.harness.telemetry.own_processes import own_processes
from bakeoff.results.records import AddressDescription, EngineDescription, Startup


class EngineUnderTest(msgspec.Struct, frozen=True):
    """A running engine, as trials see it.

    Attributes:
        engine: its adapter, which speaks its API.
        server: its process, or the address of a running server.
        description: version, command line and settings, as stored in the trial's record.
        startup: start time, and memory before the first request.
        gpus: GPUs of this machine that it may use, as in ``CUDA_VISIBLE_DEVICES``; None: all.
        own: its processes on this machine that the harness did not start, such as those of a container.
        build: from :func:`bakeoff.harness.experiment.fingerprint.build_of_engine`.
        spans: receiver of the spans that it exports; None unless it was launched to export them.
        addresses: of an engine that runs at several; empty for any other.
        launch: how its only server was started; None if it ran already, or has several.
    """

    engine: Engine
    server: Server
    description: EngineDescription
    startup: Startup
    gpus: str | None
    own: OwnProcesses = OwnProcesses()
    build: dict[str, Any] = {}
    spans: SpanReceiver | None = None
    addresses: tuple[RunningAddress, ...] = ()
    launch: Launch | None = None

    @property
    def servers(self) -> dict[str | None, Server]:
        """Its servers by label, or the only one by None."""
        return {address.label: address.server for address in self.addresses} or {None: self.server}

    @property
    def pids(self) -> list[int]:
        """Roots of the process trees that the harness started."""
        return [server.pid for server in self.servers.values() if server.pid is not None]

    def died(self, killed: Collection[str | None] = ()) -> EngineDied | None:
        """The death of one of its servers, by :func:`~bakeoff.harness.conduct.replicas.death_of`."""
        return death_of(self.servers, killed)


@contextlib.asynccontextmanager
async def started(
    engine: Engine, label: str, model: Model, port: int | None, log: Path, *, replicas: Replicas = ONE
) -> AsyncGenerator[EngineUnderTest]:
    """Start the engine; it is stopped at the end of the block.

    Args:
        engine: to launch, or to attach to if it has a ``url``.
        label: of the engine, for its description.
        model: that it serves.
        port: to listen on; None for a free one.
        log: file that gets the engine's output.
        replicas: to start, each on a free port.

    Raises:
        EngineError: ``port`` is taken; it cannot be launched, did not get ready in time, or ended before that.
    """
    if replicas.labels:
        async with _started(engine, label, model, None, log, replicas=replicas) as under_test:
            yield under_test
        return
    async with (
        _receiver(engine.launch(pick_port(port))) as (launch, spans),
        _started(engine, label, model, launch, log) as under_test,
    ):
        yield msgspec.structs.replace(under_test, spans=spans)


@contextlib.asynccontextmanager
async def _receiver(launch: Launch | None) -> AsyncGenerator[tuple[Launch | None, SpanReceiver | None]]:
    """The launch with the address of a span receiver, if the engine exports spans."""
    if launch is None or SPAN_ENDPOINT not in launch.argv:
        yield launch, None
        return
    async with receiving() as receiver:
        argv = tuple(receiver.endpoint if word == SPAN_ENDPOINT else word for word in launch.argv)
        drawn = (*launch.drawn, receiver.endpoint)
        yield msgspec.structs.replace(launch, argv=argv, drawn=drawn), receiver


@contextlib.asynccontextmanager
async def _started(
    engine: Engine, label: str, model: Model, launch: Launch | None, log: Path, *, replicas: Replicas = ONE
) -> AsyncGenerator[EngineUnderTest]:
    visible = engine.gpus()
    gpus = visible_to(visible, open_gpus()[0])
    names = (visible.split(",") if visible else list(map(str, range(len(gpus)))))[: len(gpus)]
    parts = own_parts(replicas, names)
    host_before_bytes, gpu_before_bytes = psutil.virtual_memory().available, used_bytes(gpus)
    async with _serving(engine, launch, log, replicas, parts) as (server, addresses):
        starts_s = [each.start_s for each in (server, *(address.server for address in addresses))]
        startup = Startup(
            start_s=max((start_s for start_s in starts_s if start_s is not None), default=None),
            host_available_before_bytes=host_before_bytes,
            host_available_ready_bytes=psutil.virtual_memory().available,
            gpu_used_before_bytes=gpu_before_bytes,
            gpu_used_ready_bytes=used_bytes(gpus),
        )
        build = await asyncio.to_thread(build_of_engine, engine)  # after the launch, which may have pulled an image
        first = launch or next((address.launch for address in addresses), None)
        description = await _description(engine, label, model, first, server)
        description = await described_at(engine, description, addresses)
        placed = [f"{label} {part.described()}" for label, part in zip(replicas.labels, parts, strict=True)]
        description = msgspec.structs.replace(description, notes=[*description.notes, *placed])
        if build:
            description = msgspec.structs.replace(description, details={**description.details, "build": build})
        own = await own_processes(launch, None) if launch else await processes_at(engine)
        yield EngineUnderTest(
            engine, server, description, startup, visible, own, build, addresses=addresses, launch=launch
        )


@contextlib.asynccontextmanager
async def _serving(
    engine: Engine, launch: Launch | None, log: Path, replicas: Replicas, parts: Sequence[Part]
) -> AsyncGenerator[tuple[Server, tuple[RunningAddress, ...]]]:
    """The server, or the first of several that run, with the addresses of all."""
    if replicas.labels:
        async with replicas_started(engine, replicas, launches_of(engine, parts), log) as addresses:
            yield next(address.server for address in addresses if not address.is_late), addresses
    elif launch is not None:
        async with launched(launch, log, engine.access) as server:
            yield server, ()
    else:
        yield attached(engine.url or "", engine.access), running_addresses(engine)


async def described_at(
    engine: Engine, description: EngineDescription, addresses: Sequence[RunningAddress]
) -> EngineDescription:
    """The description with its addresses; those that get requests now are asked, and differences are noted."""
    found = [await _described(engine, address) for address in addresses]
    asked = [each for each, address in zip(found, addresses, strict=True) if _is_asked(address)]
    differing = [each for each in asked if (each.version, each.settings) != (asked[0].version, asked[0].settings)]
    notes = [f"{each.label} reports another version or other settings than {asked[0].label}" for each in differing]
    return msgspec.structs.replace(description, addresses=found, notes=[*description.notes, *notes])


def _is_asked(address: RunningAddress) -> bool:
    return address.is_target and not address.is_late


async def _described(engine: Engine, address: RunningAddress) -> AddressDescription:
    details = await engine.describe(address.server) if _is_asked(address) else {}
    return msgspec.structs.replace(
        description_of(address),
        version=details.pop("version", None),
        details=masked_data(details),
        settings=masked_data(engine.settings_in(details)) if isinstance(engine, ReportsSettings) else {},
    )


def notes_of(engine: Engine) -> list[str]:
    """Notes of the adapter, and what its requests carry besides the workload's prompt and length."""
    shape = shape_of(engine.dialect)
    described = shape.described()
    return [*engine.notes, *([described] if described else [])]


def settings_asked(engine: Engine) -> dict[str, Any]:
    """The shared settings that the experiment gives an engine; secrets are masked."""
    return masked_data(engine.settings_asked()) if isinstance(engine, ReportsSettings) else {}


async def _description(
    engine: Engine, label: str, model: Model, launch: Launch | None, server: Server
) -> EngineDescription:
    """Describe the engine, partly by asking it; secrets are masked."""
    details = await engine.describe(server)
    version = details.pop("version", None)
    return EngineDescription(
        label=label,
        adapter=engine.adapter,
        version=version,
        argv=masked_data(launch.argv) if launch else [],
        drawn=list(launch.drawn) if launch else [],
        env=masked_data(launch.env) if launch else {},
        url=engine.url,
        model=model.name,
        model_sha256=model.sha256,
        settings=masked_data(engine.settings_in(details)) if isinstance(engine, ReportsSettings) else {},
        asked=settings_asked(engine),
        details=masked_data(details),
        notes=notes_of(engine),
        request=masked_data(msgspec.to_builtins(shape_of(engine.dialect))),
    )
