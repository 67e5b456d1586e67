"""Turns a planned step into a batch, has it computed, samples. The seam that tests replace with a fake."""

from typing import Protocol

from reference_engine.attention.base import Span
from reference_engine.execution import Batch, Executor
from reference_engine.kv_cache.cache import holding_of
from reference_engine.kv_cache.moves import Moves
from reference_engine.outputs import SampledToken
from reference_engine.request import Request
from reference_engine.sampling import all_plain, most_likely, sample
from reference_engine.scheduling.step import Step


class Runner(Protocol):
    """Computes one step."""

    def run(self, step: Step, moves: Moves) -> list[SampledToken]:
        """Copies blocks, then computes the chunks.

        Returns:
            For each chunk that is sampled, in turn, the next token of each of its request's `takers`.
        """
        ...


class ModelRunner:
    """The real runner.

    Args:
        executor: computes.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, step: Step, moves: Moves) -> list[SampledToken]:
        """See `Runner.run`."""
        batch, takers = self._batch(step, moves)
        is_plain = all_plain(takers)  # asked before the model has pushed the requests out of the processor's caches
        logits = self._executor.execute(batch)
        if logits is None or not takers:
            return []
        return most_likely(logits) if is_plain else sample(logits, takers)

    def _batch(self, step: Step, moves: Moves) -> tuple[Batch, list[Request]]:
        """What is computed, chunk after chunk, then padding; and who takes of each wanted row."""
        if not step.padding and all(chunk.length == 1 and chunk.is_sampled for chunk in step.chunks):
            requests = [chunk.request for chunk in step.chunks]
            if not any(request.siblings for request in requests):
                return self._single_rows(step, moves), requests
        batch = Batch(moves, [], [], [], [])
        token_ids, positions, everyone = batch.token_ids, batch.positions, list[Request]()
        for chunk in step.chunks:
            request, start, length = chunk.request, chunk.start, chunk.length
            batch.spans.append(Span(holding_of(request).blocks, start, length))
            if length == 1:
                token_ids.append(request.token_ids[start])
                positions.append(start)
            else:
                token_ids.extend(request.token_ids[start : chunk.end])
                positions.extend(range(start, chunk.end))
            if chunk.is_sampled:
                takers = request.takers
                everyone.extend(takers)
                batch.wanted_rows.extend([len(token_ids) - 1] * len(takers))
        for length in step.padding:
            token_ids.extend([0] * length)
            positions.extend(range(length))
            batch.spans.append(self._padding(length))
        return batch, everyone

    def _single_rows(self, step: Step, moves: Moves) -> Batch:
        """The same where everybody has one row and takes of it: most steps, in half the time."""
        starts = [chunk.start for chunk in step.chunks]
        spans = [Span(holding_of(chunk.request).blocks, chunk.start, 1) for chunk in step.chunks]
        token_ids = [chunk.request.token_ids[chunk.start] for chunk in step.chunks]
        return Batch(moves, spans, token_ids, starts, list(range(len(starts))))

    def _padding(self, length: int) -> Span:
        storage = self._executor.storage
        return Span([[block] * -(-length // storage.block_size) for block in storage.padding_blocks], 0, length)
