"""One sequence on its way through the engine, and how its tokens are to be chosen. Pure Python."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from reference_engine.kv_cache.cache import Holding


class FinishReason(enum.StrEnum):
    """Why a request ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop.

    Attributes:
        max_tokens: output tokens, at least 1.
        min_tokens: output tokens before which no stop token may be chosen.
        temperature: 0 takes the most likely token.
        top_p: keep the most likely tokens whose probabilities add up to this, in (0, 1].
        top_k: keep this many of the most likely tokens; 0 keeps all.
        seed: of this request's own random numbers.
        stop_token_ids: tokens that end the output, end-of-sequence tokens included.
        logprobs: whether to report the chosen token's log-probability under the unmodified model.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: bool = False

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is needed."""
        return self.temperature == 0.0 or self.top_k == 1


class Rank(NamedTuple):
    """Who comes first: smaller ranks do.

    Attributes:
        due_step: the step of arrival, later by the patience for each level of priority.
        number: in order of arrival.
        fork: in order of forking; 0 for what arrived.
    """

    due_step: int
    number: int
    fork: int = 0


class Request:
    """The mutable state of one sequence; the scheduler owns it between `add` and the finish.

    Attributes:
        token_ids: prompt and output so far.
        num_computed: leading tokens whose keys and values are cached.
        holding: what it has of the cache; None until the scheduler takes the request in.
        cache_salt: only requests with the same salt find each other's blocks in the prefix cache.
        priority: smaller is more important.
        rank: its place in the queues; the scheduler sets it.
        siblings: further answers to the same prompt; they are forked off when it is computed, and empty from then on.
        is_done: it has ended and stays until the rest of its static batch has.
        num_cached_tokens: prompt tokens found in the prefix cache when the request was first admitted; None before,
            and without prefix caching.
        arrival_s: when it was handed in, by the engine's clock; None before.
        first_scheduled_s: when its first token was computed first; None while it waits.
        first_token_s: when its first output token was made; None before.
        last_token_s: when its newest one was.
        random_state: the sampler's generator for this request.
    """

    __slots__ = (
        "arrival_s",
        "cache_salt",
        "first_scheduled_s",
        "first_token_s",
        "holding",
        "is_done",
        "last_token_s",
        "num_cached_tokens",
        "num_computed",
        "priority",
        "prompt_len",
        "random_state",
        "rank",
        "request_id",
        "sampling",
        "siblings",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        cache_salt: str | None = None,
        *,
        priority: int = 0,
        siblings: Sequence["Request"] = (),
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.prompt_len = len(prompt_token_ids)
        self.sampling = sampling
        self.cache_salt = cache_salt
        self.num_computed = 0
        self.num_cached_tokens: int | None = None
        self.holding: Holding | None = None
        self.priority = priority
        self.rank = Rank(0, 0)
        self.siblings = list(siblings)
        self.is_done = False
        self.arrival_s: float | None = None
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.random_state: Any = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - self.prompt_len

    @property
    def num_uncomputed(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed

    @property
    def width(self) -> int:
        """Seats among the running requests that it takes, with those that will be forked off."""
        return 1 + len(self.siblings)

    @property
    def is_swapped(self) -> bool:
        """Whether what it has computed lies in host memory."""
        return self.holding is not None and self.holding.swapped is not None

    @property
    def is_decoding(self) -> bool:
        """Whether exactly the last sampled token is missing from the cache."""
        return self.num_uncomputed == 1 and self.num_output > 0

    def finish_reason(self) -> FinishReason | None:
        """Whether the newest token ends the request, and why."""
        if self.num_output >= self.sampling.min_tokens and self.token_ids[-1] in self.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_output >= self.sampling.max_tokens else None


@dataclasses.dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token; `logprob` is a natural logarithm, None where nobody asked."""

    token_id: int
    logprob: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TokenOutput:
    """One new token of one request, as the engine hands it out; `num_cached_tokens` as in `Request`."""

    request_id: str
    token: SampledToken
    finish_reason: FinishReason | None
    num_cached_tokens: int | None = None
