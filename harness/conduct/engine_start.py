"""Starts an engine and records its description, its start time and the memory that it took before any request."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bakeoff.engines import Engine, Launch, Model, Server
from bakeoff.engines.base import SPAN_ENDPOINT, ReportsSettings
from bakeoff.engines.errors import EngineDied
from bakeoff.engines.request_shape import shape_of
from bakeoff.engines.secrets import masked_data
from bakeoff.harness.conduct.addresses import RunningAddress, processes_of, running_addresses
from bakeoff.harness.conduct.replicas import ONE, Replicas, death_of, launches_of, own_parts, replicas_started
from bakeoff.harness.conduct.spans import SpanReceiver, receiving
from bakeoff.harness.experiment.fingerprint import build_of_engine
from bakeoff.harness.host.gpu import open_gpus, used_bytes, visible_to
from bakeoff.harness.telemetry import OwnProcesses
from bakeoff.results.records import AddressDescription, EngineDescription, Startup


class EngineUnderTest(msgspec.Struct, frozen=True):
    """A running engine, as trials see it.

    Attributes:
        engine: its adapter, which speaks its API.
        addresses: where it is reached, at least one.
        description: version, command line and settings, as stored in the trial's record.
        startup: start time, and memory before the first request.
        gpus: GPUs of this machine that it may use, as in ``CUDA_VISIBLE_DEVICES``; None: all.
        own: its processes on this machine that the harness did not start, such as those of a container.
        build: from :func:`bakeoff.harness.experiment.fingerprint.build_of_engine`.
        spans: receiver of the spans that it exports; None unless it was launched to export them.
    """

    engine: Engine
    addresses: tuple[RunningAddress, ...]
    description: EngineDescription
    startup: Startup
    gpus: str | None
    own: OwnProcesses = OwnProcesses()
    build: dict[str, Any] = {}
    spans: SpanReceiver | None = None

    @property
    def targets(self) -> list[Server]:
        """The servers that get the client's requests from the start."""
        return [address.server for address in self.addresses if address.gets_requests]

    @property
    def server(self) -> Server:
        """The first that gets requests."""
        return self.targets[0]

    @property
    def servers(self) -> dict[str | None, Server]:
        """Its servers by label."""
        return {address.label: address.server for address in self.addresses}

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
        port: for a single server to listen on; None for a free one.
        log: file that gets the engine's output.
        replicas: to start, each on a port of its own.

    Raises:
        EngineError: ``port`` is taken; it cannot be launched, did not get ready in time, or ended before that.
    """
    visible = engine.gpus()
    gpus = visible_to(visible, open_gpus()[0])
    names = (visible.split(",") if visible else list(map(str, range(len(gpus)))))[: len(gpus)]
    parts = own_parts(replicas, names)
    async with contextlib.AsyncExitStack() as stack:
        launches, spans = await stack.enter_async_context(_receiver(launches_of(engine, parts, port)))
        host_before_bytes, gpu_before_bytes = psutil.virtual_memory().available, used_bytes(gpus)
        if launches:
            addresses = await stack.enter_async_context(replicas_started(engine, replicas, launches, log))
        else:
            addresses = running_addresses(engine)
        starts_s = [address.server.start_s for address in addresses]
        startup = Startup(
            start_s=max((start_s for start_s in starts_s if start_s is not None), default=None),
            host_available_before_bytes=host_before_bytes,
            host_available_ready_bytes=psutil.virtual_memory().available,
            gpu_used_before_bytes=gpu_before_bytes,
            gpu_used_ready_bytes=used_bytes(gpus),
        )
        build = await asyncio.to_thread(build_of_engine, engine)  # after the launch, which may have pulled an image
        server = next(address.server for address in addresses if address.gets_requests)
        description = await _description(engine, label, model, launches[0] if launches else None, server)
        description = await described_at(engine, description, addresses)
        placed = [f"{name} {part.described()}" for name, part in zip(replicas.labels, parts, strict=True) if name]
        description = msgspec.structs.replace(description, notes=[*description.notes, *placed])
        if build:
            description = msgspec.structs.replace(description, details={**description.details, "build": build})
        own = await processes_of(addresses)
        yield EngineUnderTest(engine, addresses, description, startup, visible, own, build, spans)


@contextlib.asynccontextmanager
async def _receiver(launches: list[Launch]) -> AsyncGenerator[tuple[list[Launch], SpanReceiver | None]]:
    """The launches with the address of a span receiver, if the engine exports spans."""
    if not any(SPAN_ENDPOINT in launch.argv for launch in launches):
        yield launches, None
        return
    async with receiving() as receiver:
        yield (
            [
                msgspec.structs.replace(
                    launch,
                    argv=tuple(receiver.endpoint if word == SPAN_ENDPOINT else word for word in launch.argv),
                    drawn=(*launch.drawn, receiver.endpoint),
                )
                for launch in launches
            ],
            receiver,
        )


async def described_at(
    engine: Engine, description: EngineDescription, addresses: Sequence[RunningAddress]
) -> EngineDescription:
    """The description with several addresses; those that get requests now are asked, and differences are noted."""
    labelled = [address for address in addresses if address.label is not None]
    found = [await _described(engine, address) for address in labelled]
    asked = [each for each, address in zip(found, labelled, strict=True) if address.gets_requests]
    differing = [each for each in asked if (each.version, each.settings) != (asked[0].version, asked[0].settings)]
    notes = [f"{each.label} reports another version or other settings than {asked[0].label}" for each in differing]
    return msgspec.structs.replace(description, addresses=found, notes=[*description.notes, *notes])


async def _described(engine: Engine, address: RunningAddress) -> AddressDescription:
    details = await engine.describe(address.server) if address.gets_requests else {}
    return msgspec.structs.replace(
        address.described(),
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
