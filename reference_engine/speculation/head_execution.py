"""Computes a draft head: an EAGLE-3 layer over a shadow of the verifying model's KV cache."""

import torch

from bakeoff.reference_engine.attention.base import AttentionBackend
from bakeoff.reference_engine.kv_cache.storage import KvStorage
from bakeoff.reference_engine.models.eagle import EagleHead
from bakeoff.reference_engine.models.execution import Batch, Column, ReadSlab, with_previous


class HeadExecutor:
    """Runs a head; an `Executor` for what needs no hidden states. CUDA graphs are not used: it has one layer.

    Args:
        head: with an embedding.
        attention: over the storage.
        storage: that the spans' block tables refer to.
        host: host memory for swapped-out requests; None without swapping.
    """

    def __init__(
        self, head: EagleHead, attention: AttentionBackend, storage: KvStorage, host: KvStorage | None = None
    ) -> None:
        self._head, self._attention, self._host = head, attention, host
        self._token_ids, self._positions = Column(storage.device), Column(storage.device)
        self._wanted_rows = Column(storage.device)
        self.storage = storage
        self.max_graph_tokens: int | None = None

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return self._head.fuse(states)

    def compute(self, batch: Batch, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the head, by a graph where one was captured.

        Args:
            batch: with spans, and without copies.
            hidden: [num_tokens, hidden_size], contiguous.
        """
        token_ids = self._token_ids.tensor(batch.token_ids)
        return self._head.forward(
            token_ids if batch.previous is None else with_previous(token_ids, batch.previous),
            hidden,
            self._positions.tensor(batch.positions),
            self._attention.begin_step(batch.spans),
            self._wanted_rows.tensor(batch.wanted_rows),
        )

    def execute(self, batch: Batch, read: ReadSlab | None = None) -> torch.Tensor | None:  # noqa: ARG002 (heads score nothing)
        """Copies blocks, and computes spans as if all hidden states were 0, to measure how long that takes."""
        if batch.copies:
            self.storage.copy_blocks(batch.copies, self._host)
        if not batch.spans:
            return None
        shape = len(batch.token_ids), self._head.hidden_size
        return self.compute(batch, torch.zeros(shape, dtype=self._head.dtype, device=self._head.device))[0]
