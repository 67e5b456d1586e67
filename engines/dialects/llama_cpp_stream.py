"""Streams of llama-server, of whichever route.

It puts one token into each event, save that half a character is held back: then an event has the text of several
tokens, but id and log-probability of the last one only. How many there are is said beside them, as a count from the
beginning.
"""

from typing import Any

import msgspec

from engines.dialects import failures
from engines.dialects.base import EmptyChunk, Event, Finish, StreamFault, TokenDelta, Usage
from engines.dialects.openai import OpenAiDialect

_REASONS = {"limit": "length", "eos": "stop", "word": "stop"}
"""Its own names of why an answer ended, by the usual ones."""


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    predicted_n: int | None = None


class _Probability(msgspec.Struct):
    id: int | None = None
    logprob: float | None = None


class _Native(msgspec.Struct):
    """One event of ``/completion``."""

    content: str
    stop: bool
    tokens: list[int] = []
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    truncated: bool = False
    stop_type: str = "none"
    timings: _Timings | None = None
    completion_probabilities: list[_Probability] = []
    prompt_progress: Any = None


class _Verbose(msgspec.Struct):
    """The native event as a chunk of the OpenAI routes carries it; the last one of a chat leaves things out."""

    tokens: list[int] = []
    tokens_predicted: int | None = None
    truncated: bool = False


class _LogProbs(msgspec.Struct):
    content: list[_Probability] | None = None


class _Choice(msgspec.Struct):
    logprobs: _LogProbs | None = None


class _Beside(msgspec.Struct):
    """What a chunk of the OpenAI routes may have beside what that format knows."""

    choices: list[_Choice] = []
    verbose: _Verbose | None = msgspec.field(default=None, name="__verbose")
    timings: _Timings | None = None
    prompt_progress: Any = None

    def total(self) -> int | None:
        """Tokens since the beginning; None where it does not say."""
        if self.verbose is not None:
            return self.verbose.tokens_predicted
        return self.timings.predicted_n if self.timings else None

    def ids(self) -> tuple[int, ...]:
        """Of its tokens, as far as it says them."""
        if self.verbose is not None:
            return tuple(self.verbose.tokens)
        logprobs = self.choices[0].logprobs if self.choices else None
        return tuple(token.id for token in (logprobs and logprobs.content) or () if token.id is not None)


_NATIVE = msgspec.json.Decoder(_Native)
_BESIDE = msgspec.json.Decoder(_Beside)


class LlamaServerReader:
    """Reads one answer, whichever of the routes it came by."""

    def __init__(self, dialect: OpenAiDialect) -> None:
        self._dialect = dialect
        self._tokens = 0

    def events(self, data: bytes) -> list[Event]:
        """See :class:`~engines.dialects.base.EventReader`. What is no native event is a chunk, an error or garbage."""
        try:
            return self._native_events(_NATIVE.decode(data))
        except failures.UNREADABLE:
            return self._chunk_events(data)

    def _native_events(self, said: _Native) -> list[Event]:
        if said.prompt_progress is not None:
            return [EmptyChunk()]  # its token 0 is made up
        fresh = self._fresh(said.tokens_predicted, otherwise=len(said.tokens))
        logprobs = tuple(p.logprob for p in said.completion_probabilities if p.logprob is not None)
        events: list[Event] = []
        if said.content or fresh:
            events.append(_delta(said.content, tuple(said.tokens), logprobs, fresh))
        elif not said.stop:
            events.append(EmptyChunk())
        if said.stop:
            cached = said.timings.cache_n if said.timings else None
            events.append(_CUT_OFF if said.truncated else Finish(_REASONS.get(said.stop_type, said.stop_type)))
            events.append(Usage(said.tokens_evaluated, said.tokens_predicted, cached, in_choice=True))
        return events

    def _chunk_events(self, data: bytes) -> list[Event]:
        events = self._dialect.events(data)
        try:
            beside = _BESIDE.decode(data)
        except failures.UNREADABLE:
            return events
        if beside.prompt_progress is not None:
            return [EmptyChunk()]
        cut_off = beside.verbose is not None and beside.verbose.truncated
        return [_CUT_OFF if cut_off and isinstance(event, Finish) else self._counted(event, beside) for event in events]

    def _counted(self, event: Event, beside: _Beside) -> Event:
        """A chunk's event with the ids of its tokens; a token may have no text."""
        ids, total = beside.ids(), beside.total()
        if isinstance(event, TokenDelta) and total is not None:
            return _delta(event.text, ids, event.logprobs or (), self._fresh(total, otherwise=1))
        if isinstance(event, EmptyChunk) and ids:
            return _delta("", ids, (), self._fresh(total, otherwise=len(ids)))
        return event

    def _fresh(self, total: int | None, otherwise: int) -> int:
        """Tokens since the last event, by the count from the beginning, where there is one."""
        fresh = otherwise if total is None else max(0, total - self._tokens)
        self._tokens += fresh
        return fresh


_CUT_OFF = StreamFault("the slot's context is full, so the answer was cut off; raise max_model_len")


def _delta(text: str, ids: tuple[int, ...], logprobs: tuple[float, ...], count: int) -> TokenDelta:
    """Text with the ids and log-probabilities of its tokens, where there are as many of them as tokens."""
    whole = ids if ids and len(ids) == count else None
    known = None if whole else count or None
    return TokenDelta(text, whole, logprobs if len(logprobs) == count else None, tokens=known)
