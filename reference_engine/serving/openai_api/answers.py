"""Response bodies in the format of vLLM and OpenAI, encoded by msgspec, one call per message."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from bakeoff.reference_engine.core.outputs import PromptLogprob
from bakeoff.reference_engine.serving.openai_api.choices import TokenEvent


class PromptTokensDetails(msgspec.Struct):
    """Numbers of prompt tokens; those found in the prefix cache were not computed."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """Numbers of generated tokens; those of reasoning are part of the completion's."""

    reasoning_tokens: int


class Timings(msgspec.Struct):
    """Time that a request spent inside the server, in seconds; with several choices each phase's maximum.

    `queued_s` until it was first computed, `prefill_s` until its first token, `decode_s` until its last; separately
    `detokenize_s`: turning tokens into text, summed over all choices.
    """

    queued_s: float
    prefill_s: float
    decode_s: float
    detokenize_s: float


class Usage(msgspec.Struct):
    """Token counts, summed over all choices. No details without prefix caching, and no timings before the end."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class TextLogprobs(msgspec.Struct):
    """/v1/completions: parallel lists, one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    text_offset: list[int]
    top_logprobs: list[dict[str, float] | None] | None = None

    def followed_by(self, other: "TextLogprobs") -> "TextLogprobs":
        """These entries, then those of later tokens."""
        best = None
        if self.top_logprobs is not None or other.top_logprobs is not None:
            best = [*(self.top_logprobs or ()), *(other.top_logprobs or ())]
        return TextLogprobs(
            [*self.tokens, *other.tokens],
            [*self.token_logprobs, *other.token_logprobs],
            [*self.text_offset, *other.text_offset],
            best,
        )


class Alternative(msgspec.Struct):
    """/v1/chat/completions: a token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """/v1/chat/completions: one token."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative] = []


class ChatLogprobs(msgspec.Struct):
    """/v1/chat/completions: the tokens of one chunk or answer."""

    content: list[TokenLogprob]


class RankedLogprob(msgspec.Struct):
    """A token at a position of a prompt: log-probability, rank from 1, and its own text."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, RankedLogprob] | None]
"""By position in the prompt: null for the first token, then by token id the prompt's own and the likeliest tokens."""


class TextChoice(msgspec.Struct):
    """A choice of /v1/completions, whole or one chunk of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionCall(msgspec.Struct, omit_defaults=True):
    """The function of a call, and its arguments in JSON, or the next characters of them."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A call of a function or, in a stream, a piece of one, which then has an index."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class Message(msgspec.Struct, omit_defaults=True):
    """A chat message or a piece of one."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(msgspec.Struct):
    """A whole choice of /v1/chat/completions."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """One chunk of a choice of /v1/chat/completions."""

    index: int
    delta: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class Answer(msgspec.Struct):
    """The envelope of every answer and chunk."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorAnswer(msgspec.Struct):
    """OpenAI's error envelope, in an HTTP body or as an event of a stream."""

    error: ErrorBody


_LOWEST = -9999.0

_encoder = msgspec.json.Encoder()
encode = _encoder.encode

DONE = b"data: [DONE]\n\n"


def sse(message: Answer | ErrorAnswer) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(message) + b"\n\n"


def text_logprobs(events: list[TokenEvent], offset: int = 0) -> TextLogprobs | None:
    """Log-probabilities of consecutive tokens; None if not requested. `offset`: characters before the first one."""
    if not events or events[0].logprob is None:
        return None
    offsets: list[int] = []
    length = offset
    for event in events:
        offsets.append(length)
        length += len(event.text)
    tokens = [_spelt(event.token_text or "", event.token_bytes) for event in events]
    best: list[dict[str, float] | None] | None = None
    if events[0].alternatives is not None:
        best = [_best_by_text(event) for event in events]
    return TextLogprobs(tokens, [event.logprob for event in events], offsets, best)


def echoed_logprobs(prompt: Sequence[int], scores: Sequence[PromptLogprob], texts: Mapping[int, str]) -> TextLogprobs:
    """Log-probabilities of a prompt that an answer repeats; null for its first token.

    Args:
        prompt: token ids.
        scores: of each of them but the first.
        texts: of single tokens.
    """
    tokens = [texts[token] for token in prompt]
    offsets = [0, *itertools.accumulate(map(len, tokens[:-1]))]
    has_alternatives = any(score.alternatives for score in scores)
    best: list[dict[str, float] | None] = [None]
    for score in scores:
        ranked = {texts[token]: _finite(value) for token, value in reversed(score.alternatives)}
        best.append(ranked | {texts[score.token_id]: _finite(score.logprob)})
    values = [None, *(_finite(score.logprob) for score in scores)]
    return TextLogprobs(tokens, values, offsets, best if has_alternatives else None)


def _best_by_text(event: TokenEvent) -> dict[str, float]:
    """The alternatives and the chosen token, as in OpenAI's answers; among tokens with equal text, the likeliest."""
    best: dict[str, float] = {}
    chosen = event.token_text or "", event.token_bytes, event.logprob or 0.0
    for text, spelt, value in [*(event.alternatives or ()), chosen]:
        best.setdefault(_spelt(text, spelt), value)
    return best


def _spelt(text: str, spelt: bytes) -> str:
    """The text of a token; of a part of a character its bytes in hexadecimal digits, as OpenAI writes them."""
    return text if text.encode() == spelt else "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


def prompt_logprobs(scores: Sequence[PromptLogprob] | None, texts: Mapping[int, str]) -> PromptLogprobs | UnsetType:
    """A prompt's log-probabilities in vLLM's format; unset if they were not requested.

    Args:
        scores: of each token of the prompt but the first.
        texts: of single tokens.
    """
    if scores is None:
        return UNSET
    entries: PromptLogprobs = [None]
    for score in scores:
        own = RankedLogprob(_finite(score.logprob), score.rank, texts[score.token_id])
        entry = {score.token_id: own}
        for rank, (token_id, logprob) in enumerate(score.alternatives, start=1):
            entry.setdefault(token_id, RankedLogprob(_finite(logprob), rank, texts[token_id]))
        entries.append(entry)
    return entries


def _finite(logprob: float) -> float:
    """JSON has no infinity; vLLM writes this number instead."""
    return max(logprob, _LOWEST)


def chat_logprobs(events: list[TokenEvent]) -> ChatLogprobs | None:
    """Log-probabilities of consecutive tokens in the format of the chat route; None if not requested."""
    content = [
        TokenLogprob(
            event.token_text or "",
            event.logprob,
            list(event.token_bytes),
            [Alternative(text, value, list(spelt)) for text, spelt, value in event.alternatives or ()],
        )
        for event in events
        if event.logprob is not None
    ]
    return ChatLogprobs(content) if content else None
