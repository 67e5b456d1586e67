"""The state behind the HTTP routes: engine processes that load in the background, and the data that requests need."""

import asyncio
import dataclasses
import enum
import logging
import random
import threading
import time
from pathlib import Path

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.errors import EngineUnavailableError
from bakeoff.reference_engine.loading.generation_config import SamplingDefaults, sampling_defaults
from bakeoff.reference_engine.loading.tokenizer import Tokenizer, open_tokenizer
from bakeoff.reference_engine.sampling.grammar import Grammars
from bakeoff.reference_engine.serving.core.client import EngineClient
from bakeoff.reference_engine.serving.core.launch import CoreProcess, Starter
from bakeoff.reference_engine.serving.core.wire import Facts
from bakeoff.reference_engine.serving.front_end_log import FrontEndLog
from bakeoff.reference_engine.serving.openai_api.metrics import Metrics

_log = logging.getLogger(__name__)


class Status(enum.Enum):
    """Stages of the service."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


_OfCheckpoint = tuple[Tokenizer, Grammars, SamplingDefaults]


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """The parts that answer requests.

    Attributes:
        facts: of the engines.
        tokenizer: the checkpoint's.
        grammars: check the structured output of requests; the engines compile it again.
        sampling_defaults: of requests without parameters.
        engines: that compute requests.
    """

    facts: Facts
    tokenizer: Tokenizer
    grammars: Grammars
    sampling_defaults: SamplingDefaults
    engines: EngineClient


class Service:
    """One model being served.

    Args:
        config: as given by the user.
        start_core: starts an engine; tests run it on a thread.
    """

    def __init__(self, config: EngineConfig, start_core: Starter = CoreProcess) -> None:
        self.config: EngineConfig = config
        self.metrics: Metrics = Metrics(config.model_name)
        self.front_end_log: FrontEndLog = FrontEndLog(config.step_log_dir)
        self.created_s: int = int(time.time())  # wall clock, seconds; only reported
        self._start_core = start_core
        self._engines: EngineClient | None = None
        self._serving: Serving | None = None
        self._is_draining = False
        self._random = random.Random(config.seed)  # noqa: S311 (sampling, not secrets)

    async def load(self) -> None:
        """Starts the engines, which load the model, and reads the tokenizer meanwhile; then `ready` returns.

        Raises:
            UserMistakeError: the model or the settings are at fault.
            EngineUnavailableError: an engine ended before it was ready.
        """
        self._engines = EngineClient(self.metrics.observe)
        tokenizer = _read_tokenizer(self.config)
        try:
            facts = await self._engines.start(self.config, self._start_core)
        except BaseException:
            tokenizer.cancel()
            raise
        self._serving = Serving(facts, *await tokenizer, self._engines)
        self.config = facts.config
        replicas = self._engines.replicas
        self.metrics.set_num_blocks(sum(replica.facts.result().config.num_blocks or 0 for replica in replicas))
        _log.info("ready: %s", facts)

    async def drain(self) -> None:
        """Refuses new requests and waits for open ones, at most as long as the configuration allows."""
        self._is_draining = True
        if self._engines is not None:
            try:
                await asyncio.wait_for(self._engines.drained(), self.config.drain_timeout_s)
            except TimeoutError:
                _log.warning("requests are cut short: --drain-timeout-s %s are over", self.config.drain_timeout_s)

    async def stop(self) -> None:
        """Ends the engines; requests in flight fail with a message that says so."""
        self._is_draining = True
        self.front_end_log.close()
        if self._engines is not None:
            await self._engines.stop()

    @property
    def status(self) -> Status:
        """Loading, ready, stopping or failed."""
        if self._is_draining:
            return Status.STOPPING
        if self._serving is None:
            return Status.LOADING
        return Status.FAILED if self._serving.engines.failure is not None else Status.READY

    def ready(self) -> Serving:
        """The parts that answer requests.

        Raises:
            EngineUnavailableError: still loading, crashed or stopping.
        """
        if self._is_draining:
            raise EngineUnavailableError("the server is stopping")
        if self._serving is None:
            raise EngineUnavailableError("the model is still loading; ask again when GET /health answers 200")
        if self._serving.engines.failure is not None:
            raise self._serving.engines.failure
        return self._serving

    def next_seed(self) -> int:
        """A seed for a request without one; the sequence follows from --seed."""
        return self._random.getrandbits(62)


def _read_tokenizer(config: EngineConfig) -> "asyncio.Future[_OfCheckpoint]":
    """The tokenizer and its grammars with their token table, which would otherwise block the event loop later.

    On a daemon thread, not the loop's executor: a server that stops must not wait for it.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_OfCheckpoint] = loop.create_future()

    def settle(loaded: _OfCheckpoint | None, failure: Exception | None) -> None:
        if result.cancelled():
            return
        if loaded is not None:
            result.set_result(loaded)
        elif failure is not None:
            result.set_exception(failure)

    def read() -> None:
        path, loaded, failure = Path(config.model), None, None
        try:
            tokenizer = open_tokenizer(path, config.load_format)
            eos = tokenizer.eos_token_id
            grammars = Grammars(tokenizer, eos_token_ids=() if eos is None else (eos,))
            grammars.build_vocabulary()
            reads_defaults = config.generation_config == "auto"
            loaded = tokenizer, grammars, sampling_defaults(path) if reads_defaults else SamplingDefaults()
        except Exception as error:  # noqa: BLE001 (the future carries it)
            failure = error
        try:
            loop.call_soon_threadsafe(settle, loaded, failure)
        except RuntimeError:
            _log.info("the server stopped before the tokenizer was read")

    threading.Thread(target=read, name="tokenizer", daemon=True).start()
    return result
