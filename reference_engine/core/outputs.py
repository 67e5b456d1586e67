"""What a step returns: tokens, their times by the engine's clock, and the engine's state."""

from typing import NamedTuple, Self

import msgspec

from bakeoff.reference_engine.core.request import FinishReason, Request


class SampledToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chosen token.

    Attributes:
        token_id: exactly one.
        logprob: natural logarithm; None where not requested.
        alternatives: ids and log-probabilities of the requested number of likeliest tokens, likeliest first; the chosen
            one may be among them.
        candidates: the best tokens, best first, where the request asked for them.
    """

    token_id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    candidates: "tuple[Candidate, ...]" = ()


class Candidate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token that could come next, and its log-probability after penalties, bias and `min_tokens`."""

    token: SampledToken
    log_prob: float


class PromptLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token of a prompt, under the unmodified model, given the tokens before it.

    Attributes:
        token_id: of the prompt.
        logprob: its natural logarithm.
        rank: 1 for the likeliest token of the vocabulary; among equals the smaller id comes first.
        alternatives: ids and log-probabilities of the requested number of likeliest tokens, likeliest first.
    """

    token_id: int
    logprob: float
    rank: int
    alternatives: tuple[tuple[int, float], ...] = ()


class Phases(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The time from a request's arrival to one of its tokens, in seconds, by phase.

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
        """Phases of a request that has its first token.

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
        request_id: of its request.
        token: the chosen token.
        finish_reason: set on the last one.
        gap_s: seconds since the request's last token; None for the first, and in a beam search.
        phases: set on the first and on the last one; in a beam search on the last.
        num_cached_tokens: as in `Request`; set where phases are.
        prompt_logprobs: of each token of the prompt but the first; set on the first token of a request that asked for
            them, and not on its siblings'.
    """

    request_id: str
    token: SampledToken
    finish_reason: FinishReason | None
    gap_s: float | None = None
    phases: Phases | None = None
    num_cached_tokens: int | None = None
    prompt_logprobs: tuple[PromptLogprob, ...] | None = None


class Occupancy(NamedTuple):
    """Token slots of the KV cache, by the three kinds of waste in PagedAttention's paper (SOSP'23, §3).

    Attributes:
        held: slots of the blocks in use.
        filled: slots among them that hold a token.
        reserved: empty slots that fill up if requests reach their `max_tokens`. The remaining ones are internal
            fragmentation.
        lost: slots of blocks that can never be used: external fragmentation.
    """

    held: int
    filled: int
    reserved: int
    lost: int


class StepTimes(NamedTuple):
    """When the stages of a step ended, in seconds of the engine's clock.

    Attributes:
        planned_s: before planning.
        launched_s: after the last kernel was queued; where the device does not run ahead, after the model.
        collected_s: when the sampled tokens were on the host.
        computed_s: when the device had computed them; None where it does not run ahead.
    """

    planned_s: float
    launched_s: float
    collected_s: float
    computed_s: float | None = None


class StepReport(msgspec.Struct, frozen=True, tag="step"):
    """What one step did, and the engine's state after it.

    Attributes:
        outputs: one per new token; those of a beam search all at once when it is over.
        duration_s: seconds the step took; where steps overlap, seconds since the end of the one before.
        times: of its stages.
        computed_tokens: tokens that went through the model; 0 without work.
        prompt_tokens: total prompt length of the requests with their first token in this step.
        queue_times_s: seconds from arrival to first computation, of the requests first computed in this step.
        preemptions: requests preempted in this step.
        swaps: those of them that were swapped to host memory.
        looked_up_tokens: total prompt length of the requests first looked up in the prefix cache in this step.
        cached_tokens: those of them that were cached.
        evicted_blocks: blocks evicted from the prefix cache.
        drafted: verified drafts by position: the number of first drafts of sequences, of second ones, …
        accepted: those of them that were accepted.
        arrived: requests ever added.
        running: requests with blocks.
        waiting: requests without blocks.
        free_seats: sequences that could run in addition; negative where siblings reserved more seats than there are.
        used_blocks: KV blocks in use.
        occupancy: sampled cache occupancy; None in the steps between.
    """

    outputs: list[TokenOutput]
    duration_s: float
    times: StepTimes
    computed_tokens: int
    prompt_tokens: int
    queue_times_s: list[float]
    preemptions: int
    swaps: int
    looked_up_tokens: int
    cached_tokens: int
    evicted_blocks: int
    drafted: list[int]
    accepted: list[int]
    arrived: int
    running: int
    waiting: int
    free_seats: int
    used_blocks: int
    occupancy: Occupancy | None
