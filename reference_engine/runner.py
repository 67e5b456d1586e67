"""Turns a planned step into a batch, has it computed, samples. The seam that tests replace with a fake."""

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from reference_engine.attention.base import Span
from reference_engine.execution import Batch, Executor
from reference_engine.kv_cache.cache import holding_of
from reference_engine.kv_cache.moves import Moves
from reference_engine.outputs import SampledToken
from reference_engine.request import Request
from reference_engine.sampling import sample
from reference_engine.scheduling.step import Chunk, Step

_START = operator.attrgetter("start")


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
        decodes = sorted((chunk for chunk in step.chunks if chunk.length == 1), key=_START)
        ordered = [*decodes, *(chunk for chunk in step.chunks if chunk.length > 1)]
        takers = {id(chunk): chunk.request.takers for chunk in ordered if chunk.is_sampled}
        everyone = list(itertools.chain.from_iterable(takers.values()))
        logits = self._executor.execute(self._batch(ordered, takers, step, moves))
        tokens = iter(sample(logits, everyone) if everyone and logits is not None else ())
        made = {chunk: list(itertools.islice(tokens, len(share))) for chunk, share in takers.items()}
        return [made.get(id(chunk), []) for chunk in step.chunks]

    def _batch(
        self, ordered: Sequence[Chunk], takers: Mapping[int, Sequence[Request]], step: Step, moves: Moves
    ) -> Batch:
        """What is computed: chunk after chunk, then padding; the last row of a chunk once for each that takes of it."""
        batch = Batch(moves, [], [], [], [])
        for chunk in ordered:
            request, start = chunk.request, chunk.start
            batch.spans.append(Span([table.blocks for table in holding_of(request).tables], start, chunk.length))
            if chunk.length == 1:
                batch.token_ids.append(request.token_ids[start])
                batch.positions.append(start)
            else:
                batch.token_ids.extend(request.token_ids[start : chunk.end])
                batch.positions.extend(range(start, chunk.end))
            batch.wanted_rows.extend([len(batch.token_ids) - 1] * len(takers.get(id(chunk), ())))
        for length in step.padding:
            batch.token_ids.extend([0] * length)
            batch.positions.extend(range(length))
            batch.spans.append(self._padding(length))
        return batch

    def _padding(self, length: int) -> Span:
        storage = self._executor.storage
        return Span([[block] * -(-length // storage.block_size) for block in storage.padding_blocks], 0, length)
