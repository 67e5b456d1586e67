"""The steps of one engine as arrays, and what each request has of them.

Step i occupies the engine from the later of its planning and the end of step i − 1 until its tokens were computed:
steps that overlap on a GPU thus share no time. What lies between two steps is a gap.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from bakeoff.results.attribution.catalogue import Part
from bakeoff.results.attribution.decode_cost import DecodeCost, fit
from bakeoff.results.log.step_log import ChunkRecord, EngineEvent, RequestQueued, StepRecord


class RequestSteps(msgspec.Struct, frozen=True):
    """The steps that computed one request, by position in :class:`Steps`.

    Attributes:
        queued: the request.
        chunks: by step, in order.
        prefills: steps with a chunk of its prompt.
        decodes: steps with its next token.
        output_steps: the step of each output token.
    """

    queued: RequestQueued
    chunks: dict[int, ChunkRecord]
    prefills: list[int]
    decodes: list[int]
    output_steps: list[int]

    def add(self, step: int, chunk: ChunkRecord) -> None:
        """Take the next chunk."""
        self.chunks[step] = chunk
        (self.decodes if is_decode(chunk, self.queued) else self.prefills).append(step)
        self.output_steps.extend([step] * chunk.output_tokens)

    @property
    def first_step(self) -> int:
        """The first step."""
        return next(iter(self.chunks))


class Steps(msgspec.Struct, frozen=True):
    """The steps of one engine.

    Attributes:
        records: in order.
        start_ns: of each step.
        end_ns: of each step.
        gap_ns: before each step, since the end of the one before; 0 before the first.
        prompt_tokens: in each step.
        decode_tokens: in each step, drafts included.
        output_tokens: made by the decodes of each step, without rejected drafts.
        excess_ns: what each step took beyond the expected duration of its decodes, below 0 where it took less; 0 where
            it has no decodes, or no prompts, or :attr:`excess_missing` says why it is unknown.
        cost: of decodes alone, or why it is unknown.
        requests: what was computed of each request, by request id.
    """

    records: list[StepRecord]
    start_ns: np.ndarray
    end_ns: np.ndarray
    gap_ns: np.ndarray
    prompt_tokens: np.ndarray
    decode_tokens: np.ndarray
    output_tokens: np.ndarray
    excess_ns: np.ndarray
    cost: DecodeCost | str
    requests: dict[str, RequestSteps]

    @property
    def excess_missing(self) -> str | None:
        """Why the excess is unknown; None if it is known, or if no step has both decodes and prompts."""
        has_both = bool(((self.decode_tokens > 0) & (self.prompt_tokens > 0)).any())
        return self.cost if has_both and isinstance(self.cost, str) else None

    def computing(self, own: RequestSteps, final: int) -> dict[Part, float]:
        """Divide the time from a request's first step to the end of step ``final`` into parts, in nanoseconds."""
        first = own.first_step
        prefills = [step for step in own.prefills if step <= final]
        decodes = [step for step in own.decodes if step <= final]
        duration_ns = self.end_ns - self.start_ns
        prefill, decode = float(duration_ns[prefills].sum()), float(duration_ns[decodes].sum())
        # Clipped as a sum: steps that noise made longer and shorter than expected must cancel out.
        excess = max(0.0, float(self.excess_ns[decodes].sum()))
        bubbles = float(self.gap_ns[first + 1 : final + 1].sum())
        whole = float(self.end_ns[final] - self.start_ns[first])
        return {
            Part.PREFILL: prefill,
            Part.STALL: whole - prefill - decode - bubbles,
            Part.DECODE: decode - excess,
            Part.INTERFERENCE: excess,
            Part.BUBBLES: bubbles,
        }


def is_decode(chunk: ChunkRecord, request: RequestQueued) -> bool:
    """Whether a chunk computes a request's latest token, drafts included, and no part of its prompt."""
    return chunk.past_tokens >= request.prompt_tokens and chunk.new_tokens == 1 + chunk.draft_tokens


def steps_of(events: Sequence[EngineEvent]) -> Steps:
    """Arrange the record of one engine.

    Args:
        events: as the engine wrote them.
    """
    queued = {event.number: event for event in events if isinstance(event, RequestQueued)}
    records = [event for event in events if isinstance(event, StepRecord)]
    requests = {request.request_id: RequestSteps(request, {}, [], [], []) for request in queued.values()}
    for position, record in enumerate(records):
        for chunk in record.chunks:
            requests[queued[chunk.request].request_id].add(position, chunk)
    end_ns = _array(record.ended_ns for record in records)
    start_ns = _array(record.planned_ns for record in records)
    start_ns[1:] = np.maximum(start_ns[1:], end_ns[:-1])
    gap_ns = np.zeros(len(records), dtype=np.int64)
    gap_ns[1:] = start_ns[1:] - end_ns[:-1]
    decodes = [[chunk for chunk in record.chunks if is_decode(chunk, queued[chunk.request])] for record in records]
    decode_tokens = _array(sum(chunk.new_tokens for chunk in chunks) for chunks in decodes)
    prompt_tokens = _array(sum(chunk.new_tokens for chunk in record.chunks) for record in records) - decode_tokens
    output_tokens = _array(sum(chunk.output_tokens for chunk in chunks) for chunks in decodes)
    context = _array(sum(chunk.past_tokens for chunk in chunks) for chunks in decodes)
    duration_ns = (end_ns - start_ns).astype(np.float64)
    alone, beside = (decode_tokens > 0) & (prompt_tokens == 0), (decode_tokens > 0) & (prompt_tokens > 0)
    cost = fit(decode_tokens[alone], context[alone], duration_ns[alone])
    excess_ns = np.zeros(len(records))
    if isinstance(cost, DecodeCost):
        expected_ns = cost.expected_ns(decode_tokens[beside], context[beside])
        excess_ns[beside] = duration_ns[beside] - expected_ns
    return Steps(
        records, start_ns, end_ns, gap_ns, prompt_tokens, decode_tokens, output_tokens, excess_ns, cost, requests
    )


def _array(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)
