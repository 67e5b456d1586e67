"""Turns a planned step into a batch, computes it and samples. Tests replace this interface with a fake."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.models.execution import Batch, Executor
from bakeoff.reference_engine.sampling import Place, Sampler, all_plain, argmax, choose
from bakeoff.reference_engine.sampling.prompt_scores import Position
from bakeoff.reference_engine.scheduling.step import Chunk, Step
from bakeoff.reference_engine.speculation.residual import Distribution
from bakeoff.reference_engine.speculation.verification import accepted, places_of, split, verify_on_host

Tokens = Sequence[SampledToken]
"""What one step adds to one sequence: the drafts that it accepts, and the token behind them."""


class InFlight(Protocol):
    """A step that was launched."""

    @property
    def computed_s(self) -> float | None:
        """Once collected: when the device had its results, on `time.perf_counter`; None where it did not run ahead."""
        ...

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

        Steps before it may be in flight. The last token of a request with `num_pending` is then one that this runner
        sampled itself, in the oldest of them. Block tables are read before `launch` returns, since they change with the
        next plan.
        """
        ...


class Drafter(Protocol):
    """A model that makes the drafts of steps."""

    @property
    def origins(self) -> Sequence[Distribution | None]:
        """What the latest drafts were drawn from, draft by draft; empty unless they are rejected residually."""
        ...

    def draft(self, step: Step, copies: BlockCopies) -> tuple[torch.Tensor | None, BlockCopies]:
        """Before a step is computed: drafts for it.

        Args:
            step: whose drafts are placeholders.
            copies: blocks that the verifying model copies first.

        Returns:
            int64 [drafts of all chunks], chunk by chunk, on the device of the model, or None without drafts; and the
            copies that are left to be made.
        """
        ...

    def follow(self, step: Step) -> None:
        """Takes note of a step that the verifying model has just computed."""
        ...


class Collected(msgspec.Struct, frozen=True):
    """Results that are here already; see `InFlight`."""

    tokens: Sequence[Tokens] = ()

    @property
    def computed_s(self) -> None:
        return

    def collect(self) -> Sequence[Tokens]:
        return self.tokens


class TimedEvent(Protocol):
    """What `DeviceClock` needs of a `torch.cuda.Event` with timing."""

    def query(self) -> bool:
        """Whether it has happened."""
        ...

    def synchronize(self) -> None:
        """Waits for it."""
        ...

    def elapsed_time(self, end_event: Any) -> float:  # noqa: ANN401  (an event of the same kind)
        """Milliseconds until a later event."""
        ...


class DeviceClock:
    """Times of a device's events on the host's clock.

    When the host waits for an event, the end of the wait is the event's time on both clocks. An event that had happened
    before the host asked is placed by the device's own time since the latest such wait. The host can be tens of
    milliseconds late, because it launches the next step meanwhile.

    Args:
        clock: of the host, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._reading: tuple[TimedEvent, float] | None = None

    def wait(self, event: TimedEvent) -> float:
        """Waits for an event; returns its time, or the present if the host has not waited for an earlier one."""
        has_happened = event.query()
        event.synchronize()
        now_s = self._clock()
        if not has_happened:
            self._reading = event, now_s
        elif self._reading is not None:
            earlier, at_s = self._reading
            return min(now_s, at_s + earlier.elapsed_time(event) / 1e3)
        return now_s


class _OnDevice:
    """Tokens on their way from a device; see `InFlight`.

    Args:
        tokens: int64 [n].
        results: of a step, from these tokens.
        clock: of the device.
        check: called when the tokens are here.

    Attributes:
        copied: happens on the device when the tokens are there, and on their way.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        results: Callable[[list[int]], Sequence[Tokens]],
        clock: DeviceClock,
        check: Callable[[], None],
    ) -> None:
        self._check = check
        self._results = results
        self._clock = clock
        self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        self._host.copy_(tokens, non_blocking=True)
        self.copied = torch.cuda.Event(enable_timing=True)
        self.copied.record(torch.cuda.current_stream(tokens.device))
        self.computed_s: float | None = None

    def collect(self) -> Sequence[Tokens]:
        self.computed_s = self._clock.wait(self.copied)
        self._check()
        return self._results(self._host.tolist())


class _Sampled(NamedTuple):
    """What a step sampled.

    Attributes:
        tokens: int64 [sequences].
        sequences: of the tokens.
        event: happens on the device when the tokens are there; None where they are.
    """

    tokens: torch.Tensor
    sequences: Sequence[Request]
    event: torch.cuda.Event | None = None


class ModelRunner:
    """The real runner.

    Args:
        executor: computes.
        sampler: chooses tokens.
        draft_model: makes the drafts that steps leave room for; None where their plans have them.
        check: called when the results of a step are here; raises an error if they are undefined.
        stages: steps that may be in flight when one is launched.
    """

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        draft_model: Drafter | None = None,
        check: Callable[[], None] = lambda: None,
        stages: int = 1,
    ) -> None:
        self._check = check
        self._executor = executor
        self._sampler = sampler
        self._draft_model = draft_model
        self._clock = DeviceClock()
        self._sampled = deque[_Sampled](maxlen=stages)

    def launch(self, step: Step, copies: BlockCopies) -> InFlight:
        launched = self._launch(step, copies)
        if isinstance(launched, Collected):
            self._check()
        return launched

    def _launch(self, step: Step, copies: BlockCopies) -> InFlight:
        made: torch.Tensor | None = None
        if self._draft_model is not None:
            made, copies = self._draft_model.draft(step, copies)
        batch, output_sequences, scored = self._batch(step, copies, made)
        # Asked before the model has pushed the requests out of the processor's caches.
        is_plain = all_plain(output_sequences)
        needs_host = not is_plain and any(request.sampling.needs_host for request in output_sequences)
        logits = self._executor.execute(batch, self._sampler.prompts.reader(scored) if scored else None)
        if self._draft_model is not None and logits is not None:
            self._draft_model.follow(step)
        if logits is None or not output_sequences:
            return Collected()
        if len(logits) > len(output_sequences):
            return self._verify(logits, output_sequences, step.chunks, made)
        if needs_host:
            return Collected([(token,) for token in self._sampler.sample(logits, output_sequences)])
        tokens = argmax(logits) if is_plain else self._choose(logits, output_sequences)
        if tokens.device.type == "cpu":
            self._sampled.append(_Sampled(tokens, output_sequences))
            return Collected(_single(tokens.tolist()))
        on_device = _OnDevice(tokens, _single, self._clock, self._check)
        self._sampled.append(_Sampled(tokens, output_sequences, on_device.copied))
        return on_device

    def _verify(
        self, logits: torch.Tensor, sequences: Sequence[Request], chunks: Sequence[Chunk], made: torch.Tensor | None
    ) -> InFlight:
        """Samples the rows of sequences with drafts, and of those without.

        Args:
            logits: [rows of all sequences, vocab_size].
            sequences: those that are sampled.
            chunks: of the step.
            made: int64 [drafts]; None where the chunks have them.
        """
        of_chunk = {chunk.request: chunk.drafts for chunk in chunks if chunk.drafts}
        drafts = [of_chunk.get(sequence, ()) for sequence in sequences]
        origins = [] if self._draft_model is None else self._draft_model.origins
        if origins or any(sequence.sampling.needs_host for sequence in sequences):
            known = drafts if made is None else split(made.tolist(), drafts)
            of_drafts = split(origins, drafts) if origins else None
            return Collected(verify_on_host(logits, sequences, known, self._sampler, of_drafts))
        tokens = self._choose(logits, places_of(sequences, drafts))
        if tokens.device.type == "cpu":
            return Collected(accepted(tokens.tolist(), drafts if made is None else split(made.tolist(), drafts)))
        if made is None:
            return _OnDevice(tokens, lambda tokens: accepted(tokens, drafts), self._clock, self._check)
        count = len(tokens)
        return _OnDevice(
            torch.cat([tokens, made]),
            lambda both: accepted(both[:count], split(both[count:], drafts)),
            self._clock,
            self._check,
        )  # fmt: skip

    def _choose(self, logits: torch.Tensor, places: Sequence[Place]) -> torch.Tensor:
        """Tokens int64 [places] on the device of the logits [places, vocab_size]; no place needs the host."""
        return choose(logits, places)

    def _batch(
        self, step: Step, copies: BlockCopies, made: torch.Tensor | None
    ) -> tuple[Batch, list[Request], list[Position]]:
        """The chunks, then the padding; the sequences that wanted rows are sampled for; and what is scored.

        A chunk with drafts becomes spans of one token each over the same blocks: attention stores the keys of all rows
        before any of them looks, and a row sees those before it. So a verification needs no kernel of its own.
        """
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        scored_rows: list[int] = []
        scored: list[Position] = []
        output_sequences: list[Request] = []
        sampled: _Sampled | None = None
        num_drafts = 0
        rows: dict[Request, int] = {}  # of an earlier step, where its tokens are not known on the host
        for chunk in step.chunks:
            request, start, length = chunk.request, chunk.start, chunk.length
            if chunk.drafts:
                output_sequences.append(request)
                wanted_rows += range(len(token_ids), len(token_ids) + length)
                spans += [Span(chunk.block_tables, position, 1) for position in range(start, chunk.end)]
                positions += range(start, chunk.end)
                token_ids.append(request.token_ids[start])
                token_ids += chunk.drafts if made is None else range(-1 - num_drafts, -num_drafts - length, -1)
                num_drafts += length - 1
                continue
            spans.append(Span(chunk.block_tables, start, length))
            if request.needs_prompt_logits:
                missing = self._sampler.prompts.missing(request, start, chunk.end)
                scored += [(request, position) for position in missing]
                scored_rows += [len(token_ids) + position - start for position in missing]
            if length == 1:
                if start < len(request.token_ids):
                    token_ids.append(request.token_ids[start])
                else:
                    if sampled is None:
                        sampled, rows = self._sampled_of(request)
                    token_ids.append(-1 - rows[request])
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
        previous, event = (made, None) if sampled is None else (sampled.tokens, sampled.event)
        return (
            Batch(copies, spans, token_ids, positions, wanted_rows, scored_rows, previous, event),
            output_sequences,
            scored,
        )

    def _sampled_of(self, request: Request) -> tuple[_Sampled, dict[Request, int]]:
        """The step in flight that sampled a request's pending token, and the row of each sequence in it."""
        sampled = next(step for step in reversed(self._sampled) if request in step.sequences)
        return sampled, {sequence: row for row, sequence in enumerate(sampled.sequences)}

    def _padding(self, length: int) -> Span:
        storage = self._executor.storage
        return Span([[block] * -(-length // storage.block_size) for block in storage.padding_blocks], 0, length)


def _single(tokens: Sequence[int]) -> list[Tokens]:
    """One new token for each sequence."""
    return [(SampledToken(token),) for token in tokens]
