"""Turns a planned step into a batch, computes it and samples. Tests replace this interface with a fake."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from reference_engine.attention.base import Span
from reference_engine.engine.execution import Batch, Executor
from reference_engine.engine.outputs import SampledToken
from reference_engine.engine.request import Request
from reference_engine.kv_cache.block_copies import BlockCopies
from reference_engine.sampling import Sampler, all_plain, argmax, choose_on_device
from reference_engine.scheduling.step import Step

Tokens = Sequence[SampledToken]
"""What one step adds to one sequence: the drafts that it accepts, and the token behind them."""


class InFlight(Protocol):
    """A step that was launched."""

    def collect(self) -> Sequence[Tokens]:
        """Waits for its results.

        Returns:
            For each sampled chunk in turn, the new tokens of each of its request's `output_sequences`.
        """
        ...


class Runner(Protocol):
    """Computes steps, in the order in which they are launched."""

    def launch(self, step: Step, copies: BlockCopies) -> InFlight:
        """Copies blocks, then computes the chunks.

        The step before it may be in flight. The last token of a request with `num_pending` is then one that this
        step's runner sampled itself; block tables are read before `launch` returns, since they change with the next
        plan.
        """
        ...


class Collected(msgspec.Struct, frozen=True):
    """Results that are here already; see `InFlight`."""

    tokens: Sequence[Tokens] = ()

    def collect(self) -> Sequence[Tokens]:
        """See `InFlight.collect`."""
        return self.tokens


class _OnDevice:
    """Tokens on their way from a device; see `InFlight`.

    Args:
        tokens: int64 [sequences].
    """

    def __init__(self, tokens: torch.Tensor) -> None:
        self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        self._host.copy_(tokens, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(tokens.device))

    def collect(self) -> Sequence[Tokens]:
        """See `InFlight.collect`."""
        self._copied.synchronize()
        return [(SampledToken(token),) for token in self._host.tolist()]


class ModelRunner:
    """The real runner.

    Args:
        executor: computes.
        sampler: chooses tokens.
    """

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self._executor = executor
        self._sampler = sampler
        self._last_tokens: torch.Tensor | None = None  # what the last step sampled, int64 [sequences]
        self._last_sequences: list[Request] = []

    def launch(self, step: Step, copies: BlockCopies) -> InFlight:
        """See `Runner.launch`."""
        batch, output_sequences = self._batch(step, copies)
        # Asked before the model has pushed the requests out of the processor's caches.
        is_plain = all_plain(output_sequences)
        needs_host = not is_plain and any(request.sampling.needs_host for request in output_sequences)
        logits = self._executor.execute(batch)
        if logits is None or not output_sequences:
            return Collected()
        if needs_host:
            return Collected([(token,) for token in self._sampler.sample(logits, output_sequences)])
        tokens = argmax(logits) if is_plain else self._choose(logits, output_sequences)
        self._last_tokens, self._last_sequences = tokens, output_sequences
        if tokens.device.type == "cpu":
            return Collected([(SampledToken(token),) for token in tokens.tolist()])
        return _OnDevice(tokens)

    def _choose(self, logits: torch.Tensor, sequences: Sequence[Request]) -> torch.Tensor:
        """Tokens int64 [sequences] on the device of the logits [sequences, vocab_size]; no sequence needs the host."""
        if logits.device.type == "cpu":  # NumPy is faster there than torch
            return torch.tensor([token.token_id for token in self._sampler.sample(logits, sequences)])
        return choose_on_device(logits, sequences)

    def _batch(self, step: Step, copies: BlockCopies) -> tuple[Batch, list[Request]]:
        """The chunks, then the padding; and the sequence that each wanted row is sampled for."""
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        output_sequences: list[Request] = []
        previous: torch.Tensor | None = None
        rows: dict[Request, int] = {}  # of the last step, where its tokens are not known on the host
        for chunk in step.chunks:
            request, start, length = chunk.request, chunk.start, chunk.length
            spans.append(Span(chunk.block_tables, start, length))
            if length == 1:
                if start < len(request.token_ids):
                    token_ids.append(request.token_ids[start])
                else:
                    rows = rows or {sampled: row for row, sampled in enumerate(self._last_sequences)}
                    token_ids.append(-1 - rows[request])
                    previous = self._last_tokens
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
        return Batch(copies, spans, token_ids, positions, wanted_rows, previous), output_sequences

    def _padding(self, length: int) -> Span:
        storage = self._executor.storage
        return Span([[block] * -(-length // storage.block_size) for block in storage.padding_blocks], 0, length)
