"""One sequence, and how its tokens are chosen. Pure Python; of the engine it imports only the errors."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from bakeoff.reference_engine.errors import RequestError

_COLDEST = 1e-5  # lower temperatures would overflow the scores; vLLM treats them as 0, too


class FinishReason(enum.StrEnum):
    """Why a request ended, in OpenAI's terms as far as it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    GRAMMAR = "grammar"
    """Its grammar became too complex to follow; a server answers with an error."""


EarlyStopping = bool | Literal["never"]
STEEPEST = 10.0
"""Bound of the absolute value of length penalties, which keeps powers of any length finite."""
STRONGEST = 100.0
"""Bound of a watermark's delta, the same as that of logit biases."""
RAREST = 0.01
"""The smallest share of tokens that can be green, or not green."""
LAST_KEY = (1 << 63) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class BeamParams:
    """Parameters of a beam search.

    Attributes:
        width: number of beams, at least 2, and of hypotheses kept.
        length_penalty: a hypothesis' log-probability is divided by its length to this power; above 0 favours long
            ones.
        early_stopping: when the search ends. True: with `width` hypotheses. False: when the best beam would score
            worse than all of them if it ended now. "never": the same, at the length that would be best for it.

    Raises:
        RequestError: a value outside these bounds.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        if self.width < 2:
            raise RequestError("beam search needs at least 2 beams; ask for more with n or best_of", param="best_of")
        if not -STEEPEST <= self.length_penalty <= STEEPEST:
            raise RequestError(
                f"length_penalty {self.length_penalty} is not between {-STEEPEST:g} and {STEEPEST:g}",
                param="length_penalty",
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Watermark:
    """Green lists after Kirchenbauer et al. (ICML 2023, arXiv 2301.10226); see `sampling/watermark.py`.

    Attributes:
        delta: added to the scores of green tokens, in [0, 100].
        gamma: share of the vocabulary that is green after each token, in [0.01, 0.99].
        key: selects the green tokens, in [0, 2^63). Whoever knows it can find the watermark, and forge or remove it.

    Raises:
        RequestError: a value outside these bounds.
    """

    delta: float = 2.0
    gamma: float = 0.25
    key: int = 15485863  # that of the authors' code, and public

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= STRONGEST:
            raise RequestError(f"watermark delta {self.delta} is not between 0 and {STRONGEST:g}", param="watermark")
        if not RAREST <= self.gamma <= 1 - RAREST:
            raise RequestError(
                f"watermark gamma {self.gamma} is not between {RAREST:g} and {1 - RAREST:g}", param="watermark"
            )
        if not 0 <= self.key <= LAST_KEY:
            raise RequestError(f"watermark key {self.key} is not between 0 and 2^63 - 1", param="watermark")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Parameters at their defaults cost nothing.

    Attributes:
        max_tokens: output tokens, at least 1.
        min_tokens: output tokens before which no stop token may be chosen.
        temperature: 0 takes the most likely token.
        top_p: keep the most likely tokens whose probabilities add up to this, in (0, 1].
        top_k: keep this many of the most likely tokens; 0 keeps all.
        min_p: drop tokens that are less likely than this share of the most likely one, in [0, 1].
        repetition_penalty: scores of tokens in prompt and output are divided by this where positive, else multiplied.
        presence_penalty: subtracted from the scores of tokens in the output.
        frequency_penalty: the same, once for each time they occur there.
        logit_bias: numbers added to the scores of single tokens, by token id.
        watermark: raises the scores of tokens that depend on the one before, so that the text can be recognised; None
            for no watermark.
        grammar: what the output must match, as `Grammars` compiled it; None for no constraint.
        seed: of this request's random numbers, modulo 2^64.
        stop_token_ids: tokens that end the output, end-of-sequence tokens included.
        logprobs: how many alternatives to report beside the chosen token, with their log-probabilities under the
            unmodified model; 0 reports the chosen token's only, None reports nothing.
        prompt_logprobs: the same for each token of the prompt but the first, with that many of the likeliest tokens
            beside it. The whole prompt is then computed, even if part of it is cached.
        beams: of a beam search; None for none. A search sums log-probabilities after penalties, bias, watermark
            and `min_tokens`, and ignores the other parameters that choose tokens.
        num_candidates: best tokens to report instead of choosing one; the request then pauses until it is resumed.
        needs_host: whether the next token depends on data that only the host has (the tokens so far, a grammar), or
            more than the token is reported.
        is_plain: whether only the likeliest token is asked for.

    Raises:
        RequestError: a number of tokens to report is negative.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict[int, float])
    watermark: Watermark | None = None
    grammar: str | None = None
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    beams: BeamParams | None = None
    num_candidates: int = dataclasses.field(init=False, repr=False, compare=False)
    needs_host: bool = dataclasses.field(init=False, repr=False, compare=False)
    is_plain: bool = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.prompt_logprobs is not None and self.prompt_logprobs < 0:
            raise RequestError(
                f"prompt_logprobs {self.prompt_logprobs} is negative; 0 reports the prompt's own tokens only",
                param="prompt_logprobs",
            )
        needs_host = (
            self.has_penalties
            or (self.min_tokens > 0 and bool(self.stop_token_ids))
            or bool(self.logit_bias)
            or self.watermark is not None
            or self.grammar is not None
            or self.beams is not None
            or self.logprobs is not None
        )
        # A stop token ends a hypothesis, so that a beam needs as many tokens more for its successors.
        candidates = 0 if self.beams is None else self.beams.width + len(self.stop_token_ids)
        object.__setattr__(self, "num_candidates", candidates)
        # Read for each request in each step, so computed once.
        object.__setattr__(self, "needs_host", needs_host)
        object.__setattr__(self, "is_plain", self.is_greedy and not needs_host)

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is needed."""
        return self.temperature < _COLDEST or self.top_k == 1 or self.num_candidates > 0

    @property
    def is_truncated(self) -> bool:
        """Whether only some tokens can be drawn."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether scores depend on the tokens of prompt or output."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class Request:
    """One sequence: what was asked for, and its tokens so far.

    Each component stores its own data of a request (blocks, ranks, grammars, histories) by the request's id.

    Attributes:
        token_ids: prompt and output so far, as far as the host knows them.
        num_pending: tokens after these that have been sampled and not collected yet.
        num_computed: leading tokens whose keys and values are cached, or will be by a step that is in flight.
        num_settled: those of them whose step has been collected.
        draft_token_ids: guesses of the tokens that come next, to be verified by the next step.
        block_hashes: of its prompt's full blocks, if they are known already; see `prompt_hashes`.
        cache_salt: only requests with the same salt find each other's blocks in the prefix cache.
        priority: smaller is more important.
        siblings: further answers to the same prompt; forked off when it is computed, then empty.
        num_cached_tokens: prompt tokens found in the prefix cache when the request was first admitted; None before,
            and without prefix caching.
        arrival_s: time of arrival, by the engine's clock; None before.
        first_scheduled_s: time of its first computation; None before.
        first_token_s: time of its first output token; None before.
        last_token_s: time of its latest output token; None before, and in a beam search.
    """

    __slots__ = (
        "arrival_s",
        "block_hashes",
        "cache_salt",
        "draft_token_ids",
        "first_scheduled_s",
        "first_token_s",
        "last_token_s",
        "num_cached_tokens",
        "num_computed",
        "num_pending",
        "num_settled",
        "priority",
        "prompt_len",
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
        siblings: Iterable["Request"] = (),
    ) -> None:
        self.request_id: str = request_id
        self.token_ids: list[int] = list(prompt_token_ids)
        self.prompt_len: int = len(prompt_token_ids)
        self.sampling: SamplingParams = sampling
        self.block_hashes: bytes = b""
        self.cache_salt: str | None = cache_salt
        self.num_pending: int = 0
        self.num_computed: int = 0
        self.num_settled: int = 0
        self.draft_token_ids: Sequence[int] = ()
        self.num_cached_tokens: int | None = None
        self.priority: int = priority
        self.siblings: tuple[Request, ...] = tuple(siblings)
        self.arrival_s: float | None = None
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens, pending ones included."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_output(self) -> int:
        """Known output tokens."""
        return len(self.token_ids) - self.prompt_len

    @property
    def num_sampled(self) -> int:
        """Output tokens, pending ones included."""
        return len(self.token_ids) + self.num_pending - self.prompt_len

    @property
    def is_exhausted(self) -> bool:
        """Whether its pending token is certain to be its last."""
        return self.num_pending > 0 and self.num_sampled >= self.sampling.max_tokens

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether log-probabilities of its prompt are still to be computed: cached tokens have none."""
        return self.sampling.prompt_logprobs is not None and self.first_token_s is None

    @property
    def width(self) -> int:
        """Seats that it takes among the running requests, its siblings' included."""
        return 1 + len(self.siblings)

    @property
    def output_sequences(self) -> tuple["Request", ...]:
        """The sequences that the next row of logits is sampled for."""
        return (self,) if not self.siblings or self.sampling.num_candidates else (self, *self.siblings)

    @property
    def is_decoding(self) -> bool:
        """Whether all of its tokens but the last sampled one are computed."""
        num_tokens = self.num_tokens
        return num_tokens - self.num_computed == 1 and num_tokens > self.prompt_len

    def append(self, token_id: int) -> FinishReason | None:
        """Appends the next token; returns why it ends the request, or None if it does not."""
        token_ids, sampling = self.token_ids, self.sampling
        token_ids.append(token_id)
        num_output = len(token_ids) - self.prompt_len
        if token_id in sampling.stop_token_ids and num_output >= sampling.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_output >= sampling.max_tokens else None
