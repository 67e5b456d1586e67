"""An `Executor` over several ranks."""

from collections.abc import Callable

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
        self._workers = Workers(config)
        try:
            self._workers.await_ready()
            self._group = self._meet(config.tensor_parallel_size, device)
            self._local = build(self._group)
            self._workers.await_ready()
        except BaseException:
            self._workers.close()
            raise
        self.storage = self._local.storage
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            self._workers.watch(self._group.abort)  # gloo detects a lost rank, NCCL would wait for ever

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        """See `Executor.execute`.

        Raises:
            EngineUnavailableError: a rank failed or exited; every later call raises it again.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._execute(batch, read)
        except EngineUnavailableError as error:
            self._failure = error
            raise

    def _meet(self, size: int, device: torch.device) -> Group:
        try:
            return connect(self._workers.folder, 0, size, device)
        except RuntimeError as error:  # a rank that fails at once may exit before all have connected
            raise self._workers.failure(error) from error

    def _execute(self, batch: Batch, read: ReadSlab | None) -> torch.Tensor | None:
        self._workers.send(batch)
        try:
            logits = self._local.execute(batch, read)
            if self._is_cuda:
                torch.cuda.synchronize(self.storage.device)
        except RuntimeError as error:
            raise self._workers.failure(error) from error
        if self._is_cuda:
            self._workers.check()  # an aborted collective returns normally, with undefined contents
        return logits

    def close(self) -> None:
        """Stops the other ranks."""
        self._workers.close()
        self._group.abort()
