"""What one process computes in a step. With tensor parallelism each process runs this on its part of the model.

Nothing here needs gradients. Callers enter `torch.inference_mode` once around many steps, which costs less than once a
step.
"""

import array
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import torch

from bakeoff.reference_engine.attention.base import AttentionBackend, Span
from bakeoff.reference_engine.attention.shared_step import SharedStep, TokenShare
from bakeoff.reference_engine.core.ranks import ALONE, Ranks
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.storage import KvStorage
from bakeoff.reference_engine.models.decoder import Hidden, Inputs, Model, total
from bakeoff.reference_engine.models.linear import Matrix

_FEW = 512  # tokens of a step
_LEAST_SHARE = 64  # tokens of a process, of a step that processes share out
SLAB_ROWS = 64
"""Scored rows whose logits exist at a time: [64, vocab_size], however long the prompt is."""
ReadSlab = Callable[[torch.Tensor], None]
"""Takes the logits [rows, vocab_size] of the next scored rows, at most `SLAB_ROWS`."""


class Batch(msgspec.Struct, frozen=True):
    """One step in plain numbers.

    Attributes:
        copies: blocks to copy first.
        spans: which tokens belong together and where their keys and values are stored; empty if only blocks are copied.
        token_ids: of all spans, concatenated; -1-i stands for `previous[i]`.
        positions: of each token in its sequence.
        wanted_rows: the tokens whose successor is sampled.
        scored_rows: the tokens whose successor in the prompt is scored.
        previous: int64 on the device, tokens of an earlier step that the host does not know yet; None if it has none.
        sampled: happens on the device when `previous` is there; None where it is, or if steps follow one another.
    """

    copies: BlockCopies
    spans: list[Span]
    token_ids: list[int]
    positions: list[int]
    wanted_rows: list[int]
    scored_rows: list[int] = []
    previous: torch.Tensor | None = None
    sampled: torch.cuda.Event | None = None


class Executor(Protocol):
    """Computes batches."""

    @property
    def storage(self) -> KvStorage:
        """The storage that the spans' block tables refer to."""
        ...

    @property
    def max_graph_tokens(self) -> int | None:
        """Tokens of the largest step of decodes and prompts that needs one launch; None if there is none."""
        ...

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        """Computes a batch.

        Args:
            batch: of the next step.
            read: takes the logits of its `scored_rows`; None if they are not needed, as on ranks other than 0.

        Returns:
            Logits [wanted rows, vocab_size]; None if only blocks are copied, and before the last stage of a pipeline.
        """
        ...


class SlowedExecutor:
    """Slows another executor down by sleeping: a regression of known size.

    Args:
        executor: does the work.
        share: sleep after each call, as a share of the call's duration.
    """

    def __init__(self, executor: Executor, share: float) -> None:
        self._executor = executor
        self._share = share
        self.storage: KvStorage = executor.storage

    @property
    def max_graph_tokens(self) -> int | None:
        return self._executor.max_graph_tokens

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        began = time.perf_counter()
        logits = self._executor.execute(batch, read)
        if self.storage.device.type != "cpu":
            torch.cuda.synchronize(self.storage.device)
        time.sleep(self._share * (time.perf_counter() - began))
        return logits


class LocalExecutor:
    """Runs a model, or a part of one, in this process.

    Args:
        model: the decoder.
        attention: over the storage.
        storage: that the spans' block tables refer to.
        host: host memory for swapped-out requests; None without swapping.
        ranks: the processes that share the model.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        storage: KvStorage,
        host: KvStorage | None = None,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._model = model
        self._attention = attention
        self._host = host
        self._token_ids, self._positions = Column(storage.device), Column(storage.device)
        self._wanted_rows = Column(storage.device)
        self.storage = storage
        self.max_graph_tokens: int | None = None

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:
        self._copy_blocks(batch.copies)
        if not batch.spans:
            return None  # a request was swapped out and no other runs
        rows, hidden = batch.wanted_rows, self._hidden(batch)
        if not self._ranks.stage.is_last:
            self._ranks.send(total(hidden))
            return None
        for first in range(0, len(batch.scored_rows), SLAB_ROWS):
            slab = self._wanted_rows.tensor(batch.scored_rows[first : first + SLAB_ROWS])
            logits = self._model.logits(hidden, slab)  # on every rank, because its parts are gathered
            if read is not None:
                read(logits)
        is_all = rows == list(range(len(batch.token_ids)))
        return self._model.logits(hidden, None if is_all else self._wanted_rows.tensor(rows))

    def _hidden(self, batch: Batch) -> Hidden:
        if self._ranks.contexts > 1 and len(batch.token_ids) >= _LEAST_SHARE * self._ranks.contexts:
            return self._shared_hidden(batch)
        return self._model.hidden(
            self._step_inputs(batch),
            self._positions.tensor(batch.positions),
            self._attention.begin_step(batch.spans),
        )

    def _shared_hidden(self, batch: Batch) -> Hidden:
        """The layers, for some of the tokens; the other processes compute the rest."""
        share = TokenShare(batch.spans, self._ranks)
        token_ids = self._token_ids.tensor([batch.token_ids[row] for row in share.rows])
        hidden = self._model.hidden(
            token_ids if batch.previous is None else with_previous(token_ids, batch.previous),
            self._positions.tensor([batch.positions[row] for row in share.rows]),
            SharedStep(self._attention.begin_step(share.spans), share, batch.spans, self.storage),
        )
        return share.gather(total(hidden)), None

    def _step_inputs(self, batch: Batch) -> Inputs:
        if not self._ranks.stage.is_first:
            return self._ranks.receive(self._model.rows(len(batch.token_ids)))
        token_ids = self._token_ids.tensor(batch.token_ids)
        return token_ids if batch.previous is None else with_previous(token_ids, batch.previous)

    def first_layers(self, count: int) -> "LocalExecutor":
        """An executor of the model's first layers over the same cache."""
        return LocalExecutor(self._model.first_layers(count), self._attention, self.storage, self._host)

    @property
    def embedding(self) -> Matrix:
        return self._model.embedding

    def close(self) -> None:
        """Frees what holds on to collectives between processes; nothing may be executed afterwards."""

    def _copy_blocks(self, copies: BlockCopies) -> None:
        if copies:
            self.storage.copy_blocks(copies, self._host)


def with_previous(token_ids: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """The token ids with `previous[i]` in the place of -1-i."""
    return torch.where(token_ids < 0, previous[(-1 - token_ids).clamp_(min=0)], token_ids)


class Column:
    """A reused int64 buffer for the numbers of each step.

    The tensor over it is made once for each length: making one takes torch several times as long as copying the
    numbers. A tensor is valid until the next call.

    Args:
        device: of the tensors; on a GPU they are asynchronous copies.
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
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._is_elsewhere else tensor
