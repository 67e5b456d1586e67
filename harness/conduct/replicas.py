"""The servers that the harness starts of one engine: their hardware, and which of them a fault starts under load."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bakeoff import system
from bakeoff.engines import Engine, EngineError, Launch, Server, launched, pick_port
from bakeoff.engines.addresses import Address
from bakeoff.engines.errors import EngineDied
from bakeoff.harness.conduct.addresses import RunningAddress
from bakeoff.harness.errors import first_leaf

T = TypeVar("T")
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Replicas(msgspec.Struct, frozen=True):
    """Which servers are started of an engine.

    Attributes:
        labels: of the servers; None for the only one.
        late: those that a fault starts under load.
    """

    labels: tuple[str | None, ...] = (None,)
    late: frozenset[str] = frozenset()


ONE = Replicas()


def death_of(servers: Mapping[str | None, Server], killed: Collection[str | None] = ()) -> EngineDied | None:
    """The error to raise if one of an engine's servers has ended, else None.

    Args:
        servers: by label; None for the only one.
        killed: labels of those that have ended on purpose.
    """
    for label, server in servers.items():
        if label not in killed and (death := server.died()) is not None:
            return death if label is None else type(death)(f"{label}: {death}", death.log_tail)
    return None


class Part(msgspec.Struct, frozen=True):
    """What one replica may use of this machine.

    Attributes:
        gpus: as ``CUDA_VISIBLE_DEVICES`` names them; empty for all that the engine may use.
        cores: CPU cores; empty for all.
    """

    gpus: Sequence[str] = ()
    cores: Sequence[int] = ()

    def described(self) -> str:
        """In words."""
        if self.gpus:
            return f"on GPU {', '.join(self.gpus)}"
        return f"on CPU core {', '.join(map(str, self.cores))}"


def parts_of(gpus: Sequence[str], cores: Sequence[int], replicas: int) -> list[Part]:
    """What each replica may use: an equal part of the GPUs, or of the cores on a machine without GPUs.

    Args:
        gpus: that the engine may use.
        cores: that this process may use.
        replicas: of the engine.
    """
    if replicas == 1:
        return [Part()]
    if gpus:
        return [Part(gpus=part) for part in _divided(gpus, replicas)]
    return [Part(cores=part) for part in _divided(cores, replicas)]


def _divided(whole: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Equal parts, in order; the whole for each if it has fewer members than there are parts."""
    size = len(whole) // parts
    return [whole[number * size : (number + 1) * size] if size else whole for number in range(parts)]


def own_parts(replicas: Replicas, gpus: Sequence[str]) -> list[Part]:
    """What each replica may use of this machine, by the GPUs that the engine may use."""
    return parts_of(gpus, system.usable_cores(), len(replicas.labels))


def launches_of(engine: Engine, parts: Sequence[Part], port: int | None = None) -> list[Launch]:
    """How to start each replica, on a port of its own; none for an engine that runs already.

    Args:
        engine: that they are.
        parts: what each may use.
        port: of the only one; None for free ports.

    Raises:
        EngineError: ``port`` is taken.
    """
    found: list[Launch] = []
    for own in parts:
        place = pick_port(port)
        while any(place == other.port for other in found):
            place = pick_port()
        launch = engine.launch(place)
        if launch is None:
            return []
        env = launch.env | ({VISIBLE: ",".join(own.gpus)} if own.gpus else {})
        found.append(msgspec.structs.replace(launch, env=env, cores=tuple(own.cores)))
    return found


@contextlib.asynccontextmanager
async def replicas_started(
    engine: Engine, replicas: Replicas, launches: Sequence[Launch], log: Path
) -> AsyncGenerator[tuple[RunningAddress, ...]]:
    """Start all replicas but the late ones at a time; they are stopped at the end of the block.

    Args:
        engine: that they are.
        replicas: their labels.
        launches: how to start each.
        log: file that gets the output of the first; the others' are beside it.

    Raises:
        EngineError: one of them did not start; the others are stopped.
    """
    stacks = [contextlib.AsyncExitStack() for _ in launches]
    logs = [log, *(log.with_stem(f"{log.stem}-{label}") for label in replicas.labels[1:])]

    async def start(number: int) -> Server:
        if replicas.labels[number] in replicas.late:
            server = Server(f"http://127.0.0.1:{launches[number].port}", engine.access)
            server.log = logs[number]
            return server
        running = launched(launches[number], logs[number], engine.access)
        try:
            return await stacks[number].enter_async_context(running)
        except EngineError as error:
            if replicas.labels[number] is None:
                raise
            raise type(error)(f"{replicas.labels[number]}: {error}", error.log_tail) from error

    try:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(start(number)) for number in range(len(launches))]
        except BaseExceptionGroup as error:
            raise first_leaf(error) from error
        yield tuple(
            RunningAddress(
                label, Address(server.base_url), server, is_target=True, launch=launch, is_late=label in replicas.late
            )
            for label, server, launch in zip(replicas.labels, (task.result() for task in tasks), launches, strict=True)
        )
    finally:
        await asyncio.gather(*(stack.aclose() for stack in stacks))
