"""An `Executor` over several ranks."""

import contextlib
import weakref
from collections.abc import Callable, Generator

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.errors import EngineUnavailableError
from bakeoff.reference_engine.kv_cache.storage import KvStorage
from bakeoff.reference_engine.models.execution import Batch, LocalExecutor, ReadSlab
from bakeoff.reference_engine.parallel.group import Group, Shape, connect
from bakeoff.reference_engine.parallel.workers import Workers


class ParallelExecutor:
    """Executes batches on all processes; this one is process 0 and starts the others. An `Executor`.

    Args:
        config: fully resolved.
        device: of this process.
        shape: of all of them.
        build: builds this process's executor.

    Raises:
        EngineUnavailableError: another process did not start. Errors of `build` propagate.
    """

    def __init__(
        self, config: EngineConfig, device: torch.device, shape: Shape, build: Callable[[Group], LocalExecutor]
    ) -> None:
        self._failure: EngineUnavailableError | None = None
        self._runs_ahead = device.type == "cuda"
        self._side = torch.cuda.Stream(device) if self._runs_ahead and shape.stages > 1 else None
        self._workers = workers = Workers(config)
        group: Group | None = None
        local: LocalExecutor | None = None
        try:
            workers.await_ready()
            self._group = group = self._meet(shape, device)
            if self._runs_ahead:
                workers.watch(group.abort)  # gloo detects a lost rank, the kernels of GPUs would wait for ever
            self._local = local = build(group)
            workers.await_ready()
        except BaseException:
            _close(local, group, workers)
            raise
        self.storage: KvStorage = local.storage
        self.max_graph_tokens: int | None = local.max_graph_tokens
        # At exit, too: NCCL's own end waits for graphs, and these for the interpreter's.
        self.close = weakref.finalize(self, _close, local, group, workers)

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        """On GPUs it does not wait for the results.

        Raises:
            EngineUnavailableError: a rank failed or exited; every later call raises it again.
        """
        with self._kept_failure():
            self._workers.send(batch)
            try:
                if batch.previous is not None:
                    self._pass_on(batch.previous, batch.sampled)
                return self._local.execute(batch, read)
            except RuntimeError as error:
                raise self._workers.failure(error) from error

    def _pass_on(self, tokens: torch.Tensor, sampled: torch.cuda.Event | None) -> None:
        """Gives tokens to the stage that embeds them."""
        if self._side is None or sampled is None:
            self._group.broadcast(tokens)
            return
        # Beside the steps in flight, which are behind the one that sampled these tokens.
        with torch.cuda.stream(self._side):
            self._side.wait_event(sampled)
            self._group.broadcast(tokens)
        tokens.record_stream(self._side)

    def check(self) -> None:
        """Call it when results have arrived: an aborted collective returns normally, with undefined contents.

        Raises:
            EngineUnavailableError: a rank failed or exited.
        """
        with self._kept_failure():
            if self._runs_ahead:
                self._workers.check()

    @contextlib.contextmanager
    def _kept_failure(self) -> Generator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except EngineUnavailableError as error:
            self._failure = error
            raise

    def _meet(self, shape: Shape, device: torch.device) -> Group:
        try:
            return connect(self._workers.folder, 0, shape, device)
        except RuntimeError as error:  # a rank that fails at once may exit before all have connected
            raise self._workers.failure(error) from error


def _close(local: LocalExecutor | None, group: Group | None, workers: Workers) -> None:
    """Stops the other ranks."""
    workers.stop_watching()
    try:
        if local is not None:
            local.close()
        if group is not None:
            group.abort()
    finally:
        workers.close()  # after `abort`: it removes the file through which NCCL's watchdogs meet
        if group is not None:
            group.free()  # after the last kernel of another rank
