"""The state behind the HTTP routes: loading in the background, then an engine thread and all that requests need."""

import asyncio
import dataclasses
import enum
import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from reference_engine.config import EngineConfig
from reference_engine.engine_thread import EngineThread
from reference_engine.errors import EngineUnavailableError
from reference_engine.limits import Limits
from reference_engine.loading.tokenizer import Tokenizer
from reference_engine.openai_api.metrics import Metrics

if TYPE_CHECKING:
    from reference_engine.engine import Engine  # imports torch, which the server must not wait for

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    """What loading yields.

    Attributes:
        engine: built and warm.
        config: with nothing left to decide.
        tokenizer: the checkpoint's.
        eos_token_ids: every id that ends a sequence.
        limits: of requests.
        torch_version: for GET /version.
    """

    engine: "Engine"
    config: EngineConfig
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    limits: Limits
    torch_version: str


Loader = Callable[[EngineConfig], LoadedModel]


def load_model(config: EngineConfig) -> LoadedModel:
    """The real loader: reads the checkpoint and builds the engine. Takes seconds; called off the event loop.

    Raises:
        CheckpointError, ConfigError: the model or the settings are at fault.
    """
    import torch  # noqa: PLC0415 (takes a second; the port is open before)

    from reference_engine.assembly import build_engine, limits_of, resolve_config  # noqa: PLC0415
    from reference_engine.loading.checkpoint import open_checkpoint  # noqa: PLC0415

    checkpoint = open_checkpoint(Path(config.model))
    resolved = resolve_config(config, checkpoint.config)
    return LoadedModel(
        engine=build_engine(resolved, checkpoint),
        config=resolved,
        tokenizer=checkpoint.tokenizer,
        eos_token_ids=checkpoint.eos_token_ids,
        limits=limits_of(resolved, checkpoint.config),
        torch_version=str(torch.__version__),
    )


class Status(enum.Enum):
    """Where the service is in its life."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class Service:
    """One model being served.

    Args:
        config: as the user gave it.
        loader: what turns it into a model; tests give a fast one.
    """

    def __init__(self, config: EngineConfig, loader: Loader = load_model) -> None:
        self.config = config
        self.metrics = Metrics()
        self.created_s = int(time.time())  # wall clock, seconds; only reported
        self._loader = loader
        self._loaded: tuple[LoadedModel, EngineThread] | None = None
        self._random = random.Random(config.seed)  # noqa: S311 (sampling, not secrets)

    async def load(self) -> None:
        """Loads the model on a thread and starts the engine; `ready` answers afterwards.

        Raises:
            Whatever the loader raises.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[LoadedModel] = loop.create_future()
        # A daemon thread, not the loop's executor: a server that is told to stop must not wait for a load to end.
        threading.Thread(target=_load_into, args=(self._loader, self.config, loop, result), daemon=True).start()
        loaded = await result
        self.metrics.set_config(loaded.config)
        self.config = loaded.config
        self._loaded = (loaded, EngineThread(loaded.engine, loop, self.metrics.observe))
        _log.info("ready: %s", loaded.config)

    async def stop(self) -> None:
        """Ends the engine thread; requests in flight fail with a message that says so."""
        if self._loaded is not None:
            await self._loaded[1].stop()

    @property
    def status(self) -> Status:
        """Loading, ready or failed."""
        if self._loaded is None:
            return Status.LOADING
        return Status.FAILED if self._loaded[1].failure is not None else Status.READY

    def ready(self) -> tuple[LoadedModel, EngineThread]:
        """The model and its thread.

        Raises:
            EngineUnavailableError: still loading, crashed or stopping.
        """
        if self._loaded is None:
            raise EngineUnavailableError("the model is still loading; ask again when GET /health answers 200")
        failure = self._loaded[1].failure
        if failure is not None:
            raise failure
        return self._loaded

    def next_seed(self) -> int:
        """A seed for a request that names none; the sequence follows from --seed."""
        return self._random.getrandbits(62)


def _load_into(
    loader: Loader, config: EngineConfig, loop: asyncio.AbstractEventLoop, result: "asyncio.Future[LoadedModel]"
) -> None:
    """Thread body: settles `result` on its loop unless the loop has gone meanwhile."""
    loaded: LoadedModel | None = None
    failure: Exception | None = None
    try:
        loaded = loader(config)
    except Exception as error:  # noqa: BLE001 (handed on to whoever awaits)
        failure = error

    def settle() -> None:
        if result.cancelled():
            return
        if loaded is None:
            result.set_exception(failure or EngineUnavailableError("loading ended without a model"))
        else:
            result.set_result(loaded)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        _log.info("the server stopped before the model was loaded")
