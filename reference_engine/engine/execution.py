"""What one process computes in a step. Where several share a model, each runs this on its part.

Nothing here asks for gradients, so that it works in any of torch's modes; whoever runs many steps enters
`torch.inference_mode` once around them, which costs less than once a step.
"""

import array
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from reference_engine.attention.base import AttentionBackend, Span
from reference_engine.kv_cache.block_copies import BlockCopies
from reference_engine.kv_cache.storage import KvStorage
from reference_engine.models.decoder import Model

_FEW = 512  # tokens of a step


class Batch(msgspec.Struct, frozen=True):
    """One step in plain numbers.

    Attributes:
        copies: blocks to copy first.
        spans: which tokens belong together and where their keys and values lie; empty where only blocks are copied.
        token_ids: of all spans, one after the other.
        positions: of each token in its sequence.
        wanted_rows: the tokens whose successor is wanted.
    """

    copies: BlockCopies
    spans: list[Span]
    token_ids: list[int]
    positions: list[int]
    wanted_rows: list[int]


class Executor(Protocol):
    """Computes batches."""

    @property
    def storage(self) -> KvStorage:
        """What the spans' block tables point into."""
        ...

    def execute(self, batch: Batch) -> torch.Tensor | None:
        """Logits [wanted rows, vocab_size]; None where only blocks are copied."""
        ...


class SlowedExecutor:
    """Takes longer than another one, by waiting: a regression of known size.

    Args:
        executor: does the work.
        share: of its time, to be added.
    """

    def __init__(self, executor: Executor, share: float) -> None:
        self._executor = executor
        self._share = share
        self.storage = executor.storage

    def execute(self, batch: Batch) -> torch.Tensor | None:
        """See `Executor.execute`."""
        began = time.perf_counter()
        logits = self._executor.execute(batch)
        if self.storage.device.type != "cpu":
            torch.cuda.synchronize(self.storage.device)
        time.sleep(self._share * (time.perf_counter() - began))
        return logits


class LocalExecutor:
    """With a model, or a part of one, in this process.

    Args:
        model: the decoder.
        attention: works on the storage.
        storage: what the spans' block tables point into.
        host: where requests are swapped out to; None where none is.
    """

    def __init__(
        self, model: Model, attention: AttentionBackend, storage: KvStorage, host: KvStorage | None = None
    ) -> None:
        self._model = model
        self._attention = attention
        self._host = host
        self._token_ids, self._positions = _Column(storage.device), _Column(storage.device)
        self._wanted_rows = _Column(storage.device)
        self.storage = storage

    def execute(self, batch: Batch) -> torch.Tensor | None:
        """See `Executor.execute`."""
        if batch.copies:
            self.storage.copy_blocks(batch.copies, self._host)
        if not batch.spans:
            return None  # a request went to host memory and nobody else runs
        wanted = batch.wanted_rows
        return self._model.forward(
            self._token_ids.tensor(batch.token_ids),
            self._positions.tensor(batch.positions),
            self._attention.begin_step(batch.spans),
            None if wanted == list(range(len(batch.token_ids))) else self._wanted_rows.tensor(wanted),
        )


class _Column:
    """Whole numbers, those of each step in the place of the last step's.

    A tensor over that place is made once for each length: torch takes several times as long for it as the copying does.
    It is good until the next one is asked for.

    Args:
        device: where the tensors are; elsewhere than on the CPU they are copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_elsewhere = device, device.type != "cpu"
        self._values = array.array("q")
        self._tensors = {0: torch.empty(0, dtype=torch.int64)}

    def tensor(self, values: Sequence[int]) -> torch.Tensor:
        """int64 [len(values)]."""
        length = len(values)
        if length > len(self._values):
            self._values = array.array("q", bytes(8 * length))
            self._tensors = {0: self._tensors[0]}
        self._values[:length] = array.array("q", values)
        tensor = self._tensors.get(length)
        if tensor is None:
            tensor = torch.frombuffer(self._values, dtype=torch.int64, count=length)
            if length <= _FEW:
                self._tensors[length] = tensor
        return tensor.to(self._device) if self._is_elsewhere else tensor
