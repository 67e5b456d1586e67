"""Turns a planned step into a batch, has it computed, samples. The seam that tests replace with a fake."""

from typing import Protocol

from reference_engine.attention.base import Span
from reference_engine.engine.execution import Batch, Executor
from reference_engine.engine.outputs import SampledToken
from reference_engine.engine.request import Request
from reference_engine.kv_cache.moves import Moves
from reference_engine.sampling import Sampler, all_plain, most_likely
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
        sampler: chooses tokens.
    """

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self._executor = executor
        self._sampler = sampler

    def run(self, step: Step, moves: Moves) -> list[SampledToken]:
        """See `Runner.run`."""
        batch, takers = self._batch(step, moves)
        is_plain = all_plain(takers)  # asked before the model has pushed the requests out of the processor's caches
        logits = self._executor.execute(batch)
        if logits is None or not takers:
            return []
        return most_likely(logits) if is_plain else self._sampler.sample(logits, takers)

    def _batch(self, step: Step, moves: Moves) -> tuple[Batch, list[Request]]:
        """What is computed, chunk after chunk, then padding; and who takes of each wanted row."""
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        everyone: list[Request] = []
        for chunk in step.chunks:
            request, start, length = chunk.request, chunk.start, chunk.length
            spans.append(Span(chunk.block_tables, start, length))
            if length == 1:
                token_ids.append(request.token_ids[start])
                positions.append(start)
            else:
                token_ids += request.token_ids[start : chunk.end]
                positions += range(start, chunk.end)
            if chunk.is_sampled:
                row = len(token_ids) - 1
                if request.siblings:
                    takers = request.takers
                    everyone += takers
                    wanted_rows += [row] * len(takers)
                else:
                    everyone.append(request)
                    wanted_rows.append(row)
        for length in step.padding:
            token_ids += [0] * length
            positions += range(length)
            spans.append(self._padding(length))
        return Batch(moves, spans, token_ids, positions, wanted_rows), everyone

    def _padding(self, length: int) -> Span:
        storage = self._executor.storage
        return Span([[block] * -(-length // storage.block_size) for block in storage.padding_blocks], 0, length)
