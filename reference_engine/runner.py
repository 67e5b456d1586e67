"""Turns a planned step into a batch, has it computed, samples. The seam that tests replace with a fake."""

from typing import Protocol

import torch

from reference_engine.attention.base import Span
from reference_engine.execution import Batch, Executor
from reference_engine.kv_cache.cache import holding_of
from reference_engine.kv_cache.moves import Moves
from reference_engine.outputs import SampledToken
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
        executor: computes.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @torch.inference_mode()
    def run(self, step: Step, moves: Moves) -> list[list[SampledToken]]:
        """See `Runner.run`."""
        # Decodes first, by context length: the attention backend pads neighbours to the longest of them.
        ordered = sorted(step.chunks, key=lambda chunk: (chunk.length > 1, chunk.end))
        logits = self._executor.execute(self._batch(ordered, step, moves))
        shares = {id(chunk): chunk.request.takers for chunk in ordered if chunk.is_sampled}
        takers = [one for share in shares.values() for one in share]
        tokens = iter(sample(logits, takers) if takers and logits is not None else ())
        made = {chunk: [next(tokens) for _ in share] for chunk, share in shares.items()}
        return [made.get(id(chunk), []) for chunk in step.chunks]

    def _batch(self, ordered: list[Chunk], step: Step, moves: Moves) -> Batch:
        batch = Batch(moves, [_span(chunk) for chunk in ordered], [], [], [])
        for chunk in ordered:
            batch.token_ids.extend(chunk.request.token_ids[chunk.start : chunk.end])
            batch.positions.extend(range(chunk.start, chunk.end))
            if chunk.is_sampled:
                batch.wanted_rows.extend([len(batch.token_ids) - 1] * len(chunk.request.takers))
        for length in step.padding:
            batch.token_ids.extend([0] * length)
            batch.positions.extend(range(length))
            batch.spans.append(self._padding(length))
        return batch

    def _padding(self, length: int) -> Span:
        storage = self._executor.storage
        return Span([[block] * -(-length // storage.block_size) for block in storage.padding_blocks], 0, length)


def _span(chunk: Chunk) -> Span:
    return Span([table.blocks for table in holding_of(chunk.request).tables], chunk.start, chunk.length)
