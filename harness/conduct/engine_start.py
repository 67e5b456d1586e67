"""Starts an engine and records its description, its start time and the memory that it took before any request."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bakeoff.engines import Engine, Launch, Model, Server, attached, launched
from bakeoff.engines.base import SPAN_ENDPOINT, ReportsSettings
from bakeoff.engines.request_shape import shape_of
from bakeoff.engines.secrets import masked_data
from bakeoff.harness.conduct.addresses import RunningAddress, description_of, processes_at, running_addresses
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
        launch: how it was started; None if it ran already.
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


@contextlib.asynccontextmanager
async def started(engine: Engine, label: str, model: Model, port: int, log: Path) -> AsyncGenerator[EngineUnderTest]:
    """Start the engine; it is stopped at the end of the block.

    Args:
        engine: to launch, or to attach to if it has a ``url``.
        label: of the engine, for its description.
        model: that it serves.
        port: to listen on.
        log: file that gets the engine's output.

    Raises:
        EngineError: it cannot be launched, did not get ready in time, or ended before that.
    """
    async with (
        _receiver(engine.launch(port)) as (launch, spans),
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
    engine: Engine, label: str, model: Model, launch: Launch | None, log: Path
) -> AsyncGenerator[EngineUnderTest]:
    visible = engine.gpus()
    gpus = visible_to(visible, open_gpus()[0])
    host_before_bytes, gpu_before_bytes = psutil.virtual_memory().available, used_bytes(gpus)
    already_running = contextlib.nullcontext(attached(engine.url or "", engine.access))
    running = launched(launch, log, engine.access) if launch else already_running
    async with running as server:
        startup = Startup(
            start_s=server.start_s,
            host_available_before_bytes=host_before_bytes,
            host_available_ready_bytes=psutil.virtual_memory().available,
            gpu_used_before_bytes=gpu_before_bytes,
            gpu_used_ready_bytes=used_bytes(gpus),
        )
        build = await asyncio.to_thread(build_of_engine, engine)  # after the launch, which may have pulled an image
        addresses = running_addresses(engine)
        description = await _description(engine, label, model, launch, server)
        description = await described_at(engine, description, addresses)
        if build:
            description = msgspec.structs.replace(description, details={**description.details, "build": build})
        own = await own_processes(launch, None) if launch else await processes_at(engine)
        yield EngineUnderTest(
            engine, server, description, startup, visible, own, build, addresses=addresses, launch=launch
        )


async def described_at(
    engine: Engine, description: EngineDescription, addresses: Sequence[RunningAddress]
) -> EngineDescription:
    """The description with its addresses; those that get requests are asked, and differences are noted."""
    found = [await _described(engine, address) for address in addresses]
    asked = [each for each, address in zip(found, addresses, strict=True) if address.is_target]
    differing = [each for each in asked if (each.version, each.settings) != (asked[0].version, asked[0].settings)]
    notes = [f"{each.label} reports another version or other settings than {asked[0].label}" for each in differing]
    return msgspec.structs.replace(description, addresses=found, notes=[*description.notes, *notes])


async def _described(engine: Engine, address: RunningAddress) -> AddressDescription:
    details = await engine.describe(address.server) if address.is_target else {}
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
