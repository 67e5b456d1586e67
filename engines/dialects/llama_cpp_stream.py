"""Reader of llama-server's streams, of all its routes.

Each event is one token, except that incomplete UTF-8 characters are held back: the next event then has the text of
several tokens, but id and log-probability of the last one only. Their number follows from the cumulative count that
events also carry. Source: ``tools/server`` of https://github.com/ggml-org/llama.cpp.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects import failures
from bakeoff.engines.dialects.base import EmptyChunk, Event, Finish, StreamFault, TokenDelta, Usage
from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.engines.dialects.values import count

_REASONS = {"limit": "length", "eos": "stop", "word": "stop"}
"""OpenAI's finish reasons by llama-server's stop types."""


class _Timings(msgspec.Struct):
    cache_n: Any = None
    predicted_n: Any = None


class _Probability(msgspec.Struct):
    id: int | None = None
    logprob: float | None = None


class _Native(msgspec.Struct):
    """One event of ``/completion``."""

    content: str
    stop: bool
    tokens: list[int] = []
    tokens_predicted: Any = None
    tokens_evaluated: Any = None
    truncated: Any = False
    stop_type: str = "none"
    timings: _Timings | None = None
    completion_probabilities: list[_Probability] = []
    prompt_progress: Any = None


class _Verbose(msgspec.Struct):
    """The native event inside a chunk of the OpenAI routes; that of a chat's last chunk is incomplete."""

    tokens: list[int] = []
    tokens_predicted: Any = None
    truncated: Any = False


class _LogProbs(msgspec.Struct):
    content: list[_Probability] | None = None


class _Choice(msgspec.Struct):
    logprobs: _LogProbs | None = None


class _Extras(msgspec.Struct):
    """llama-server's extra fields in chunks of the OpenAI routes."""

    choices: list[_Choice] = []
    verbose: _Verbose | None = msgspec.field(default=None, name="__verbose")
    timings: _Timings | None = None
    prompt_progress: Any = None

    def total(self) -> int | None:
        """Cumulative token count; None without one."""
        if self.verbose is not None:
            return count(self.verbose.tokens_predicted)
        return count(self.timings.predicted_n) if self.timings else None

    def ids(self) -> tuple[int, ...]:
        """Ids of the chunk's tokens, as far as it has them."""
        if self.verbose is not None:
            return tuple(self.verbose.tokens)
        logprobs = self.choices[0].logprobs if self.choices else None
        return tuple(token.id for token in (logprobs and logprobs.content) or () if token.id is not None)


_NATIVE = msgspec.json.Decoder(_Native)
_EXTRAS = msgspec.json.Decoder(_Extras)


class LlamaServerReader:
    """Decodes one answer of any route."""

    def __init__(self, dialect: OpenAiDialect) -> None:
        self._dialect = dialect
        self._tokens = 0

    def events(self, data: bytes) -> list[Event]:
        """Payloads other than native events are chunks or errors."""
        try:
            return self._native_events(_NATIVE.decode(data))
        except failures.UNREADABLE:
            return self._chunk_events(data)

    def _native_events(self, event: _Native) -> list[Event]:
        if event.prompt_progress is not None:
            return [EmptyChunk()]  # its token id 0 is a placeholder
        predicted = count(event.tokens_predicted)
        fresh = self._fresh(predicted, otherwise=len(event.tokens))
        logprobs = tuple(p.logprob for p in event.completion_probabilities if p.logprob is not None)
        events: list[Event] = []
        if event.content or fresh:
            events.append(_delta(event.content, tuple(event.tokens), logprobs, fresh))
        elif not event.stop:
            events.append(EmptyChunk())
        if event.stop:
            cached = count(event.timings.cache_n) if event.timings else None
            events.append(_TRUNCATED if event.truncated else Finish(_REASONS.get(event.stop_type, event.stop_type)))
            events.append(Usage(count(event.tokens_evaluated), predicted, cached, in_choice=True))
        return events

    def _chunk_events(self, data: bytes) -> list[Event]:
        events = self._dialect.events(data)
        try:
            extras = _EXTRAS.decode(data)
        except failures.UNREADABLE:
            return events
        if extras.prompt_progress is not None:
            return [EmptyChunk()]
        truncated = extras.verbose is not None and extras.verbose.truncated
        return [
            _TRUNCATED if truncated and isinstance(event, Finish) else self._counted(event, extras) for event in events
        ]

    def _counted(self, event: Event, extras: _Extras) -> Event:
        """The event with ids and count of its tokens; a token can have no text."""
        ids, total = extras.ids(), extras.total()
        if isinstance(event, TokenDelta) and total is not None:
            return _delta(event.text, ids, event.logprobs or (), self._fresh(total, otherwise=1))
        if isinstance(event, EmptyChunk) and ids:
            return _delta("", ids, (), self._fresh(total, otherwise=len(ids)))
        return event

    def _fresh(self, total: int | None, otherwise: int) -> int:
        """Tokens since the last event, from the cumulative count if there is one."""
        fresh = otherwise if total is None else max(0, total - self._tokens)
        self._tokens += fresh
        return fresh


_TRUNCATED = StreamFault("the slot's context is full, so the answer was cut off; raise max_model_len")


def _delta(text: str, ids: tuple[int, ...], logprobs: tuple[float, ...], fresh: int) -> TokenDelta:
    """A delta with ids and log-probabilities if they are complete; else with the token count alone."""
    complete_ids = ids if ids and len(ids) == fresh else None
    tokens = None if complete_ids else fresh or None
    return TokenDelta(text, complete_ids, logprobs if len(logprobs) == fresh else None, tokens=tokens)
