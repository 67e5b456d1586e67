"""Turns planned chunks into tensors, runs the model, samples. The seam that tests replace with a fake."""

from collections.abc import Sequence
from typing import Protocol

import torch

from reference_engine.attention.base import AttentionBackend, Span
from reference_engine.errors import EngineBugError
from reference_engine.models.llama import LlamaModel
from reference_engine.request import Chunk, SampledToken
from reference_engine.sampling import sample


class Runner(Protocol):
    """Computes one step."""

    def run(self, chunks: Sequence[Chunk]) -> list[SampledToken | None]:
        """Computes the chunks; per chunk the next token, or None where the chunk does not reach the sequence's end."""
        ...


class ModelRunner:
    """The real runner.

    Args:
        model: the decoder.
        attention: holds the cache that the requests' block tables point into.
        device: where the model's tensors live.
    """

    def __init__(self, model: LlamaModel, attention: AttentionBackend, device: torch.device) -> None:
        self._model = model
        self._attention = attention
        self._device = device

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> list[SampledToken | None]:
        """See `Runner.run`."""
        # Decodes first, by context length: the attention backend pads neighbours to the longest of them.
        ordered = sorted(chunks, key=lambda chunk: (chunk.length > 1, chunk.end))
        token_ids: list[int] = []
        positions: list[int] = []
        last_rows: list[int] = []
        for chunk in ordered:
            token_ids.extend(chunk.request.token_ids[chunk.start : chunk.end])
            positions.extend(range(chunk.start, chunk.end))
            if chunk.is_sampled:
                last_rows.append(len(token_ids) - 1)
        logits = self._model.forward(
            self._tensor(token_ids),
            self._tensor(positions),
            self._attention.begin_step([_span(chunk) for chunk in ordered]),
            self._tensor(last_rows),
        )
        sampled = [chunk.request for chunk in ordered if chunk.is_sampled]
        tokens = sample(logits, sampled) if sampled else []
        token_of = {request.request_id: token for request, token in zip(sampled, tokens, strict=True)}
        return [token_of.get(chunk.request.request_id) for chunk in chunks]

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _span(chunk: Chunk) -> Span:
    if chunk.request.table is None:
        raise EngineBugError(f"request {chunk.request.request_id} is planned without a block table")
    return Span(chunk.request.table.blocks, chunk.start, chunk.length)
