"""An `Executor` over several ranks."""

import contextlib
import weakref
from collections.abc import Callable, Generator

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.errors import EngineUnavailableError
from bakeoff.reference_engine.models.execution import Batch, LocalExecutor, ReadSlab
from bakeoff.reference_engine.parallel.group import Group, connect
from bakeoff.reference_engine.parallel.workers import Workers


class TensorParallelExecutor:
    """Executes batches on all ranks; this process is rank 0 and starts the others. An `Executor`.

    Args:
        config: fully resolved.
        device: of rank 0.
        build: builds rank 0's executor.

    Raises:
        EngineUnavailableError: another rank did not start. Errors of `build` propagate.
    """

    def __init__(self, config: EngineConfig, device: torch.device, build: Callable[[Group], LocalExecutor]) -> None:
        self._failure: EngineUnavailableError | None = None
        self._runs_ahead = device.type == "cuda"
        self._workers = workers = Workers(config)
        group: Group | None = None
        local: LocalExecutor | None = None
        try:
            workers.await_ready()
            self._group = group = self._meet(config.tensor_parallel_size, device)
            if self._runs_ahead:
                workers.watch(group.abort)  # gloo detects a lost rank, the kernels of GPUs would wait for ever
            self._local = local = build(group)
            workers.await_ready()
        except BaseException:
            _close(local, group, workers)
            raise
        self.storage = local.storage
        # At exit, too: NCCL's own end waits for graphs, and these for the interpreter's.
        self.close = weakref.finalize(self, _close, local, group, workers)

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        """See `Executor.execute`; on GPUs it does not wait for the results.

        Raises:
            EngineUnavailableError: a rank failed or exited; every later call raises it again.
        """
        with self._kept_failure():
            self._workers.send(batch)
            try:
                if batch.previous is not None:
                    self._group.broadcast(batch.previous)
                return self._local.execute(batch, read)
            except RuntimeError as error:
                raise self._workers.failure(error) from error

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

    def _meet(self, size: int, device: torch.device) -> Group:
        try:
            return connect(self._workers.folder, 0, size, device)
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
