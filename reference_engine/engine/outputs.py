"""What comes out of a step: tokens, their times by the engine's clock, and how things stand. Plain data."""

from typing import NamedTuple, Self

import msgspec

from reference_engine.engine.request import FinishReason, Request


class SampledToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chosen token.

    Attributes:
        token_id: exactly one.
        logprob: natural logarithm; None where nobody asked.
        alternatives: ids and log-probabilities of the likeliest tokens, as many as were asked for, likeliest first; the
            chosen one may be among them.
        continuations: where it is a beam that goes on: the best tokens, best first, of which this is the first.
    """

    token_id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    continuations: "tuple[Continuation, ...]" = ()


class Continuation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token with which a beam can go on, and its log-probability as the search adds it up."""

    token: SampledToken
    log_prob: float


class Phases(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The parts of a request's life up to one of its tokens, in seconds: they sum to the whole.

    Attributes:
        queue_s: from arrival to first computation.
        prefill_s: from there to the first token, preemptions included.
        decode_s: from there to this token.
    """

    queue_s: float
    prefill_s: float
    decode_s: float

    @classmethod
    def of(cls, request: Request, now_s: float) -> Self:
        """Of a request that has its first token.

        Args:
            request: with its times.
            now_s: when the token was made.
        """
        arrival_s = now_s if request.arrival_s is None else request.arrival_s
        began_s = arrival_s if request.first_scheduled_s is None else request.first_scheduled_s
        first_s = now_s if request.first_token_s is None else request.first_token_s
        return cls(began_s - arrival_s, first_s - began_s, now_s - first_s)

    @property
    def e2e_s(self) -> float:
        """From arrival to this token."""
        return self.queue_s + self.prefill_s + self.decode_s


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One new token of one request.

    Attributes:
        request_id: whose.
        token: what was chosen.
        finish_reason: set on the last one.
        gap_s: seconds since the request's last token; None for the first, and in a beam search.
        phases: set on the first and on the last one; in a beam search on the last.
        num_cached_tokens: as in `Request`; set where phases are.
    """

    request_id: str
    token: SampledToken
    finish_reason: FinishReason | None
    gap_s: float | None = None
    phases: Phases | None = None
    num_cached_tokens: int | None = None


class Occupancy(NamedTuple):
    """Places for tokens in the KV cache; PagedAttention's paper (SOSP'23, §3) names the three ways to waste them.

    Attributes:
        held: in the blocks that requests hold.
        filled: those of them that hold a token.
        reserved: those of the others that the request will fill if it makes as many tokens as it may. What is left is
            internal fragmentation: nobody ever fills it.
        lost: in blocks that nobody can ever hold: external fragmentation.
    """

    held: int
    filled: int
    reserved: int
    lost: int


class StepReport(msgspec.Struct, frozen=True, tag="step"):
    """What one step did, and how things stand after it.

    Attributes:
        outputs: one per new token; those of a beam search when it is over, all at once.
        duration_s: seconds the step took.
        computed_tokens: tokens that went through the model; 0 when there was nothing to do.
        prompt_tokens: prompt lengths of the requests that got their first token.
        queue_times_s: seconds from arrival to first computation, of the requests that began in this step.
        preemptions: requests that lost their blocks in this step.
        swaps: those of them whose blocks went to host memory.
        looked_up_tokens: prompt lengths of the requests that were looked up in the prefix cache for the first time.
        cached_tokens: how many of those were found there and need not be computed.
        evicted_blocks: blocks that could have been found and were taken for something else.
        arrived: requests that were ever added.
        running: requests with blocks.
        waiting: requests without blocks.
        free_seats: sequences that could run beside them; below 0 where several answers were promised seats.
        used_blocks: KV blocks in use.
        occupancy: how full they are; None in steps that do not look.
    """

    outputs: list[TokenOutput]
    duration_s: float
    computed_tokens: int
    prompt_tokens: int
    queue_times_s: list[float]
    preemptions: int
    swaps: int
    looked_up_tokens: int
    cached_tokens: int
    evicted_blocks: int
    arrived: int
    running: int
    waiting: int
    free_seats: int
    used_blocks: int
    occupancy: Occupancy | None
