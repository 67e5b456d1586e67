"""The step log of an engine: what became of each request, and when (docs/profile.md).

One file for each process of the engine that records: frames of msgpack as in :mod:`bakeoff.results.files.frames`. Times
are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share, the measuring client included.
"""

from typing import NamedTuple

import msgspec


class RequestQueued(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="queued"):
    """A request, in the engine process.

    Attributes:
        number: names it in steps.
        request_id: as the HTTP process knows it.
        prompt_tokens: length of its prompt.
        submitted_ns: when the HTTP process is about to send it; None where that is not known.
        added_ns: when it entered the queue of the scheduler; None if it was there before the log began.
    """

    number: int
    request_id: str
    prompt_tokens: int
    submitted_ns: int | None
    added_ns: int | None


class ChunkRecord(NamedTuple):
    """Tokens of one request that a step computed.

    Attributes:
        request: number of the request.
        past_tokens: tokens in its cache before the step.
        new_tokens: tokens computed, drafts included.
        draft_tokens: those of them that were guesses.
        output_tokens: tokens that the request got from the step; 0 where its prompt goes on, or where it had ended
            before the step was collected.
    """

    request: int
    past_tokens: int
    new_tokens: int
    draft_tokens: int
    output_tokens: int


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="step"):
    """One step of the engine.

    Attributes:
        number: counts steps since the log began.
        planned_ns: before planning.
        launched_ns: after the last kernel was queued; on a CPU after the model.
        collected_ns: when the sampled tokens were on the host.
        chunks: what was computed.
        preempted: numbers of the requests that lost their blocks.
        running: requests with blocks, after the step.
        waiting: requests without blocks.
        used_blocks: KV blocks in use.
        computed_ns: when the device had computed the tokens; None where it does not run ahead of the host.
    """

    number: int
    planned_ns: int
    launched_ns: int
    collected_ns: int
    chunks: list[ChunkRecord]
    preempted: list[int]
    running: int
    waiting: int
    used_blocks: int
    computed_ns: int | None = None

    @property
    def ended_ns(self) -> int:
        """When the tokens were computed, on the device or on the host."""
        return self.collected_ns if self.computed_ns is None else self.computed_ns


class WriteRecord(NamedTuple):
    """One write of a stream.

    Attributes:
        tokens: output tokens in it.
        reported_ns: when the report of their step arrived from the engine process.
        written_ns: when their text was handed to the socket.
    """

    tokens: int
    reported_ns: int
    written_ns: int


class HttpRecord(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="http"):
    """One HTTP request that was streamed, in the HTTP process.

    Attributes:
        request_ids: of its sequences; each begins with the id that the answer carries.
        received_ns: when its handler began.
        parsed_ns: when it was parsed and tokenised, before it is sent to the engine process.
        writes: of its tokens.
        ended_ns: when the answer had ended.
    """

    request_ids: list[str]
    received_ns: int
    parsed_ns: int
    writes: list[WriteRecord]
    ended_ns: int


EngineEvent = RequestQueued | StepRecord
"""Records of the engine process."""
