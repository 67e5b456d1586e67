"""SGLang's two dialects: its OpenAI routes, and its native ``/generate``.

Their quirks, from ``sglang/srt/entrypoints``:

- The OpenAI routes refuse ``return_token_ids`` in a streamed chat with HTTP 400; chats get cumulative token counts
  in each chunk instead.
- ``/generate`` repeats the whole answer so far in every event, unless the server runs with
  ``--incremental-streaming-output``. If the client or the server lags, only the newest state is sent, so an event
  can add any number of tokens.
- ``/generate`` has no chats; chats use the OpenAI route.
"""

from typing import Any, ClassVar

import msgspec

from bakeoff.engines.dialects.base import (
    EmptyChunk,
    Event,
    EventReader,
    Finish,
    HttpRequest,
    StreamFault,
    TokenDelta,
    Usage,
)
from bakeoff.engines.dialects.failures import UNREADABLE
from bakeoff.engines.dialects.fields import EXTENDED, OFFICIAL, Carriers, at
from bakeoff.engines.dialects.openai import STREAM_HEADERS, OpenAiDialect
from bakeoff.engines.dialects.values import count, text
from bakeoff.engines.dialects.vllm import VllmDialect
from bakeoff.workloads.types import Turn


class SglangDialect(VllmDialect):
    """The OpenAI routes: vLLM's fields, with cumulative token counts instead of token ids in chats."""

    name = "sglang"
    reasoning_field: ClassVar[str | None] = "reasoning_content"

    def carriers(self, turn: Turn) -> Carriers:
        """Those of the OpenAI format."""
        return OpenAiDialect.carriers(self, turn)

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens, with ids in completions and counts in chats."""
        fields = super().sampling(turn)
        if turn.messages is not None:
            del fields["return_token_ids"]
            fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return fields

    def reader(self) -> EventReader:
        """A new reader, because token counts are cumulative."""
        return _CountReader(self)


class _CountReader:
    """Assigns to each chunk the tokens by which the cumulative count grew."""

    def __init__(self, dialect: SglangDialect) -> None:
        self._dialect = dialect
        self._tokens = 0

    def events(self, data: bytes) -> list[Event]:
        events = self._dialect.events(data)
        total = next((event.output_tokens for event in events if isinstance(event, Usage)), None)
        if total is None:
            return events
        count, self._tokens = total - self._tokens, total
        last = max((i for i, event in enumerate(events) if isinstance(event, TokenDelta)), default=None)
        if last is not None and count > 0:
            events[last] = msgspec.structs.replace(events[last], tokens=count)
        return events


class SglangNativeDialect(SglangDialect):
    """``/generate`` with token ids in every event; chats use the OpenAI route."""

    takes_token_ids = False  # it has another field for them

    name = "sglang-native"

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~bakeoff.engines.dialects.base.Dialect`."""
        if turn.messages is not None:
            return super().request(turn, model, logprobs=logprobs)
        sampling: dict[str, Any] = {"max_new_tokens": turn.output_tokens, "temperature": 0}
        if not turn.ends_by_itself:
            sampling |= {"min_new_tokens": turn.output_tokens, "ignore_eos": True}
        if turn.json_schema is not None:
            sampling["json_schema"] = turn.json_schema
        body = {"text": turn.prompt, "stream": True, "sampling_params": {**sampling, **self.neutral}}
        if logprobs:
            body["return_logprob"] = True
        return HttpRequest("/generate", STREAM_HEADERS, msgspec.json.encode(body))

    def carriers(self, turn: Turn) -> Carriers:
        """The native route has all settings in one object."""
        if turn.messages is not None:
            return super().carriers(turn)
        named = {**OFFICIAL, **EXTENDED}
        return {name: at(f"sampling_params.{'sampling_seed' if name == 'seed' else name}") for name in named}

    def reader(self) -> EventReader:
        """A new reader, because events are cumulative."""
        return _NativeReader(self)


class _FinishReason(msgspec.Struct):
    type: str
    message: Any = None


class _MetaInfo(msgspec.Struct):
    finish_reason: _FinishReason | None = None
    prompt_tokens: Any = None
    completion_tokens: Any = None
    cached_tokens: Any = None
    output_token_logprobs: list[tuple[float | None, int, str | None]] = []


class _State(msgspec.Struct):
    """One event of ``/generate``."""

    meta_info: _MetaInfo
    text: str = ""
    output_ids: list[int] = []


class _NativeReader:
    """Decodes one answer of either route."""

    def __init__(self, dialect: SglangNativeDialect) -> None:
        self._chunks = _CountReader(dialect)
        self._decoder = msgspec.json.Decoder(_State)
        self._tokens = 0
        self._chars = 0

    def events(self, data: bytes) -> list[Event]:
        """Payloads other than states are chunks of chats or errors."""
        try:
            state = self._decoder.decode(data)
        except UNREADABLE:
            return self._chunks.events(data)
        return [*self._added(state), *_end(state.meta_info)]

    def _added(self, state: _State) -> list[Event]:
        """The tokens that this event adds to earlier ones."""
        meta = state.meta_info
        stated = count(meta.completion_tokens)
        fresh = max(0, (len(state.output_ids) if stated is None else stated) - self._tokens)
        ids = tuple(state.output_ids[-fresh:]) if fresh else ()
        is_whole = len(state.output_ids) > fresh or (fresh > 0 and not ids)  # not only the new tokens
        added = state.text[self._chars :] if is_whole else state.text
        self._tokens += fresh
        self._chars += len(added)
        if not added and not ids:
            return [EmptyChunk()]
        return [TokenDelta(added, ids or None, _log_probs(meta, fresh))]


def _log_probs(meta: _MetaInfo, fresh: int) -> tuple[float, ...] | None:
    """Log-probabilities of the newest ``fresh`` tokens; None if any is missing."""
    newest = [logprob for logprob, _, _ in meta.output_token_logprobs[-fresh:]] if fresh else []
    logprobs = tuple(logprob for logprob in newest if logprob is not None)
    return logprobs if logprobs and len(logprobs) == fresh else None


def _end(meta: _MetaInfo) -> list[Event]:
    """The counts so far, and the finish reason of an answer that has ended."""
    events: list[Event] = []
    reason = meta.finish_reason
    if reason is not None:
        aborted = reason.type == "abort"
        events.append(
            StreamFault(text(reason.message) or "the server aborted the request") if aborted else Finish(reason.type)
        )
    prompt, output = count(meta.prompt_tokens), count(meta.completion_tokens)
    if prompt is not None or output is not None:
        events.append(Usage(prompt, output, count(meta.cached_tokens), in_choice=True))
    return events
