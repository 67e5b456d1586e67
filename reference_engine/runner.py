"""Turns a planned step into tensors, runs the model, samples. The seam that tests replace with a fake."""

from collections.abc import Sequence
from typing import Protocol

import torch

from reference_engine.attention.base import AttentionBackend, Span
from reference_engine.kv_cache.cache import holding_of
from reference_engine.kv_cache.moves import Moves
from reference_engine.kv_cache.storage import KvStorage
from reference_engine.models.decoder import Model
from reference_engine.request import Request, SampledToken
from reference_engine.sampling import sample
from reference_engine.scheduling.step import Chunk, Step


class Runner(Protocol):
    """Computes one step."""

    def run(self, step: Step, moves: Moves) -> list[list[SampledToken]]:
        """Copies blocks, then computes the chunks.

        Returns:
            For each chunk the next token of each of its request's `takers`; nothing where the chunk does not reach the
            end of what is known.
        """
        ...


class ModelRunner:
    """The real runner.

    Args:
        model: the decoder.
        attention: works on the storage.
        storage: what the requests' block tables point into.
        host: where requests are swapped out to; None where none is.
    """

    def __init__(
        self, model: Model, attention: AttentionBackend, storage: KvStorage, host: KvStorage | None = None
    ) -> None:
        self._model = model
        self._attention = attention
        self._storage = storage
        self._host = host

    @torch.inference_mode()
    def run(self, step: Step, moves: Moves) -> list[list[SampledToken]]:
        """See `Runner.run`."""
        if moves:
            self._storage.move(moves, self._host)
        if not step.chunks:
            return []  # a request went to host memory and nobody else runs
        # Decodes first, by context length: the attention backend pads neighbours to the longest of them.
        ordered = sorted(step.chunks, key=lambda chunk: (chunk.length > 1, chunk.end))
        token_ids: list[int] = []
        positions: list[int] = []
        last_rows: list[int] = []
        takers: list[Request] = []
        shares: dict[int, int] = {}  # of the sampled tokens, by chunk
        for chunk in ordered:
            token_ids.extend(chunk.request.token_ids[chunk.start : chunk.end])
            positions.extend(range(chunk.start, chunk.end))
            if chunk.is_sampled:
                mine = chunk.request.takers
                takers.extend(mine)
                last_rows.extend([len(token_ids) - 1] * len(mine))
                shares[id(chunk)] = len(mine)
        spans = [_span(chunk) for chunk in ordered]
        for length in step.padding:
            token_ids.extend([0] * length)
            positions.extend(range(length))
            spans.append(self._padding(length))
        logits = self._model.forward(
            self._tensor(token_ids),
            self._tensor(positions),
            self._attention.begin_step(spans),
            self._tensor(last_rows),
        )
        tokens = iter(sample(logits, takers) if takers else ())
        made = {chunk: [next(tokens) for _ in range(share)] for chunk, share in shares.items()}
        return [made.get(id(chunk), []) for chunk in step.chunks]

    def _padding(self, length: int) -> Span:
        blocks = -(-length // self._storage.block_size)
        return Span([[block] * blocks for block in self._storage.padding_blocks], 0, length)

    def _tensor(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._storage.device)


def _span(chunk: Chunk) -> Span:
    return Span([table.blocks for table in holding_of(chunk.request).tables], chunk.start, chunk.length)
