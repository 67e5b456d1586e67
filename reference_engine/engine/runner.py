"""Turns a planned step into a batch, computes it and samples. Tests replace this interface with a fake."""

from typing import Protocol

from reference_engine.attention.base import Span
from reference_engine.engine.execution import Batch, Executor
from reference_engine.engine.outputs import SampledToken
from reference_engine.engine.request import Request
from reference_engine.kv_cache.block_copies import BlockCopies
from reference_engine.sampling import Sampler, all_plain, most_likely
from reference_engine.scheduling.step import Step


class Runner(Protocol):
    """Computes one step."""

    def run(self, step: Step, copies: BlockCopies) -> list[SampledToken]:
        """Copies blocks, then computes the chunks.

        Returns:
            For each sampled chunk in turn, the next token of each of its request's `output_sequences`.
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

    def run(self, step: Step, copies: BlockCopies) -> list[SampledToken]:
        """See `Runner.run`."""
        batch, output_sequences = self._batch(step, copies)
        is_plain = all_plain(
            output_sequences
        )  # asked before the model has pushed the requests out of the processor's caches
        logits = self._executor.execute(batch)
        if logits is None or not output_sequences:
            return []
        return most_likely(logits) if is_plain else self._sampler.sample(logits, output_sequences)

    def _batch(self, step: Step, copies: BlockCopies) -> tuple[Batch, list[Request]]:
        """The chunks, then the padding; and the sequence that each wanted row is sampled for."""
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        output_sequences: list[Request] = []
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
                    family = request.output_sequences
                    output_sequences += family
                    wanted_rows += [row] * len(family)
                else:
                    output_sequences.append(request)
                    wanted_rows.append(row)
        for length in step.padding:
            token_ids += [0] * length
            positions += range(length)
            spans.append(self._padding(length))
        return Batch(copies, spans, token_ids, positions, wanted_rows), output_sequences

    def _padding(self, length: int) -> Span:
        storage = self._executor.storage
        return Span([[block] * -(-length // storage.block_size) for block in storage.padding_blocks], 0, length)
