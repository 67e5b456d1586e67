"""One sequence on its way through the engine, and how its tokens are to be chosen. Pure Python."""

import dataclasses
import enum
from typing import Any

from reference_engine.kv_cache.block_table import BlockTable


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


class Request:
    """The mutable state of one sequence; the scheduler owns it between `add` and the finish.

    Attributes:
        token_ids: prompt and output so far.
        num_computed: leading tokens whose keys and values are cached.
        table: the blocks that hold them; None until the scheduler takes the request in.
        cache_salt: only requests with the same salt find each other's blocks in the prefix cache.
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
        "last_token_s",
        "num_cached_tokens",
        "num_computed",
        "prompt_len",
        "random_state",
        "request_id",
        "sampling",
        "table",
        "token_ids",
    )

    def __init__(
        self, request_id: str, prompt_token_ids: list[int], sampling: SamplingParams, cache_salt: str | None = None
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.prompt_len = len(prompt_token_ids)
        self.sampling = sampling
        self.cache_salt = cache_salt
        self.num_computed = 0
        self.num_cached_tokens: int | None = None
        self.table: BlockTable | None = None
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
    def is_decoding(self) -> bool:
        """Whether exactly the last sampled token is missing from the cache."""
        return self.num_uncomputed == 1 and self.num_output > 0

    def finish_reason(self) -> FinishReason | None:
        """Whether the newest token ends the request, and why."""
        if self.num_output >= self.sampling.min_tokens and self.token_ids[-1] in self.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_output >= self.sampling.max_tokens else None


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + length) of a request, to be computed in one step."""

    request: Request
    start: int
    length: int

    @property
    def end(self) -> int:
        """Tokens in the cache after the step."""
        return self.start + self.length

    @property
    def is_sampled(self) -> bool:
        """Whether the chunk reaches the end of what is known, so that its last row gives the next token."""
        return self.end == self.request.num_tokens


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
