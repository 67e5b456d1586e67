"""The interface between a run and its surroundings: processes, threads, signals and clocks.

:class:`RealWorld` is this machine; :class:`bakeoff.harness.virtual.VirtualWorld` simulates one in virtual time. Waiting
needs no method here: ``asyncio.sleep`` and ``asyncio.timeout`` use the event loop, which :meth:`World.run` chooses.
"""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec
import uvloop

from bakeoff import system
from bakeoff.engines import Engine, Model
from bakeoff.engines.identification import tokenizer_folder
from bakeoff.engines.models import resolve
from bakeoff.engines.server import require_listener
from bakeoff.harness.calibration.client_error import Shape, calibrate
from bakeoff.harness.client import Fleet, local_fleet
from bakeoff.harness.client.fleet.ray_fleet import ray_fleet
from bakeoff.harness.conduct.engine_start import EngineUnderTest, started
from bakeoff.harness.conduct.replica_control import Control, control_of
from bakeoff.harness.conduct.replicas import ONE, Replicas
from bakeoff.harness.experiment.config import ClientConfig, ModelConfig
from bakeoff.harness.experiment.fingerprint import build_of_engine
from bakeoff.harness.host.environment import environment, git_commit, source
from bakeoff.harness.host.signals import stop_signals
from bakeoff.harness.host.threads import in_thread
from bakeoff.harness.telemetry import ExporterPage, OwnProcesses, ServerPage, sampler
from bakeoff.results.log.run_log import Source
from bakeoff.results.log.store import new_run_id
from bakeoff.results.records import ClientError
from bakeoff.workloads import NoTokenizer, Tokenizer, tokenizer_at

T = TypeVar("T")
P = ParamSpec("P")
Fetching = Callable[[int, int | None], None]
"""Called with a download's progress: bytes so far, and the total or None."""


class Telemetry(Protocol):
    """Samples host, engine and client: :class:`bakeoff.harness.telemetry.Sampler`, or its virtual counterpart."""

    @property
    def interval_ns(self) -> int | None:
        """Time between two samples of the host; None if it is not sampled."""
        ...

    def into(
        self,
        log: Path,
        engine_pids: Sequence[int],
        client_pids: Sequence[int],
        servers: Sequence[ServerPage] = (),
        gpus: str | None = None,
        *,
        own: OwnProcesses = ...,
        exporters: Sequence[ExporterPage] = ...,
    ) -> AbstractAsyncContextManager[None]: ...

    async def include(self, pid: int) -> None: ...

    async def mark(self, mark: str) -> None: ...


class Provenance(msgspec.Struct, frozen=True):
    """Process, machine and commits behind a run: the fields of :class:`~bakeoff.results.log.run_log.RunStarted`."""

    pid: int
    host: str
    git_commit: str | None
    source: Source | None
    environment: dict[str, Any]


class World(Protocol):
    """What runs, searches and gates need from their surroundings.

    Attributes:
        has_reference: whether sampled answers can be compared with a reference model.
        cores: processes that may decode answers at a time, once a load has ended.
    """

    has_reference: bool

    @property
    def cores(self) -> int: ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on an event loop of this world."""
        ...

    def now_ns(self) -> int:
        """Monotonic nanoseconds; all timestamps of a run come from this clock."""
        ...

    def now_utc(self) -> datetime:
        """The wall-clock time."""
        ...

    def run_id(self, name: str) -> str:
        """A new run id; ids sort by time and are unique."""
        ...

    def provenance(self) -> Provenance:
        """The process, machine and commits behind a run."""
        ...

    def on_termination(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` on the running loop at SIGTERM and SIGHUP."""
        ...

    async def in_thread(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work without blocking the event loop."""
        ...

    async def model(self, config: ModelConfig, fetching: Fetching) -> Model:
        """The model, fetched if necessary.

        Raises:
            EngineError: it is unknown, or cannot be fetched.
        """
        ...

    def tokenizer(self, config: ModelConfig, model: Model) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            NoTokenizer: its folder is not configured, or has no tokenizer.
        """
        ...

    def build(self, engine: Engine) -> dict[str, Any]:
        """The build that a launch would run; see :func:`bakeoff.harness.experiment.fingerprint.build_of_engine`."""
        ...

    async def require_listener(self, url: str) -> None:
        """Connect to a running server from this machine.

        Raises:
            NotReady: nothing listens there.
        """
        ...

    def started(
        self, engine: Engine, label: str, model: Model, port: int | None, log: Path, *, replicas: Replicas = ONE
    ) -> AbstractAsyncContextManager[EngineUnderTest]:
        """Start the engine; it is stopped at the end of the block.

        Raises:
            EngineError: as :func:`bakeoff.harness.conduct.engine_start.started`; or ``port`` is taken.
        """
        ...

    def control(self, under_test: EngineUnderTest, replica: str | None, log: Path) -> Control:
        """Power over a replica's processes, or over the engine's.

        Args:
            under_test: the running engine.
            replica: label of its address; None for the engine itself.
            log: file for the output of commands.
        """
        ...

    def fleet(self, client: ClientConfig) -> AbstractAsyncContextManager[Fleet]:
        """The measuring client; closed at the end of the block."""
        ...

    def sampler(self) -> AbstractAsyncContextManager[Telemetry]:
        """The telemetry; closed at the end of the block."""
        ...

    async def calibrate(self, fleet: Fleet, shape: Shape, transport: str) -> ClientError: ...


def _ending_signals() -> tuple[signal.Signals, ...]:
    return (signal.SIGINT, *stop_signals())


async def _with_last_signals(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await the coroutine, and then let the loop see a signal that came since it last waited, which would be lost."""
    result = await coroutine
    await asyncio.sleep(0.001)  # two iterations: uvloop runs what is due before it reads signals
    return result


class RealWorld:
    """This machine."""

    has_reference = True

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on uvloop, which would leave handlers of :meth:`on_termination` behind that do nothing."""
        is_main = threading.current_thread() is threading.main_thread()
        # A handler is None, and cannot be installed again, if it did not come from Python.
        handlers = {n: handler for n in _ending_signals() if is_main and (handler := signal.getsignal(n)) is not None}
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_with_last_signals(coroutine))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def now_ns(self) -> int:
        """The time of ``time.monotonic_ns()``."""
        return time.monotonic_ns()

    def now_utc(self) -> datetime:
        """The time of this machine's clock."""
        return datetime.now(UTC)

    def run_id(self, name: str) -> str:
        """A new id from :func:`bakeoff.results.log.store.new_run_id`."""
        return new_run_id(name)

    @property
    def cores(self) -> int:
        """The cores that this process may use."""
        return len(system.usable_cores())

    def provenance(self) -> Provenance:
        """This process, this machine, and the commits of harness and working directory."""
        return Provenance(
            pid=os.getpid(),
            host=socket.gethostname(),
            git_commit=git_commit(),
            source=source(Path.cwd(), os.environ),
            environment=environment(),
        )

    def on_termination(self, callback: Callable[[], object]) -> None:
        """Install the callback as signal handler of the running loop, for Ctrl-C too; only the first signal counts.

        A second one must not cut off the work that the first has begun: recording the requests and the run's end.
        Outside the main thread, as in a program with several, signals are the program's own business.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        signals = iter([callback])

        def stop() -> None:
            for first in signals:
                first()

        for number in _ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop)

    async def in_thread(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the work by :func:`bakeoff.harness.host.threads.in_thread`."""
        return await in_thread(work, *args, **kwargs)

    async def model(self, config: ModelConfig, fetching: Fetching) -> Model:
        """The model from the cache, a path or the network."""
        return await asyncio.to_thread(resolve, config.name, config.path, fetching)

    def tokenizer(self, config: ModelConfig, model: Model) -> Tokenizer:
        """The tokenizer in ``[model]`` of the experiment, in the model's folder, or of a cached model of that name."""
        location = config.tokenizer or model.path or tokenizer_folder(model.name, None)
        if location is None:
            raise NoTokenizer(
                "prompts of exact length need the model's tokenizer; set tokenizer in [model] to its folder, or to "
                "'approximate'"
            )
        return tokenizer_at(str(location))

    def build(self, engine: Engine) -> dict[str, Any]:
        """The build of the engine on this machine."""
        return build_of_engine(engine)

    async def require_listener(self, url: str) -> None:
        """Connect by :func:`bakeoff.engines.server.require_listener`."""
        await require_listener(url)

    def started(
        self, engine: Engine, label: str, model: Model, port: int | None, log: Path, *, replicas: Replicas = ONE
    ) -> AbstractAsyncContextManager[EngineUnderTest]:
        """Start the engine by :func:`bakeoff.harness.conduct.engine_start.started`."""
        return started(engine, label, model, port, log, replicas=replicas)

    def control(self, under_test: EngineUnderTest, replica: str | None, log: Path) -> Control:
        """Power over processes of this machine, or by the fault's commands."""
        address = next((each for each in under_test.addresses if each.label == replica), under_test.addresses[0])
        return control_of(address.launch, address.server, log)

    def fleet(self, client: ClientConfig) -> AbstractAsyncContextManager[Fleet]:
        """Workers on this machine, or on a Ray cluster."""
        if client.ray:
            return ray_fleet(client.ray, client.workers, client.cores)
        return local_fleet(client.workers, client.cores)

    def sampler(self) -> AbstractAsyncContextManager[Telemetry]:
        """A sampler in its own process."""
        return sampler()

    async def calibrate(self, fleet: Fleet, shape: Shape, transport: str) -> ClientError:
        """Calibrate against a truth server."""
        return await calibrate(fleet, shape, transport)


_WORLD: ContextVar[World] = ContextVar("world", default=RealWorld())  # noqa: B039  (it has no state)


def current_world() -> World:
    """The world for runs that begin now: this machine, except inside :func:`inside`."""
    return _WORLD.get()


@contextlib.contextmanager
def inside(world: World) -> Generator[None]:
    """Make runs that begin in the block use ``world``, including those of the command line."""
    token = _WORLD.set(world)
    try:
        yield
    finally:
        _WORLD.reset(token)
