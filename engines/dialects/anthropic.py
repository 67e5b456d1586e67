"""Anthropic's Messages API, ``/v1/messages``, of the service and of engines that imitate it.

Source: https://docs.anthropic.com/en/api/messages-streaming. The format can neither force the length of an answer nor
send token ids, log-probabilities or token counts per chunk. Its quirks:

- Usage is spread over the stream: prompt counts come first, output counts later, and a repeated field replaces the
  earlier value.
- An answer is complete at ``message_stop``, not at its stop reason; there is no ``[DONE]``.
- Events of unknown types must be ignored.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects import failures
from bakeoff.engines.dialects.base import (
    EmptyChunk,
    Event,
    EventReader,
    Finish,
    HttpRequest,
    StreamFault,
    TokenDelta,
    TokenKind,
    Usage,
)
from bakeoff.engines.dialects.fields import Carriers, at, same
from bakeoff.engines.dialects.openai import STREAM_HEADERS
from bakeoff.workloads.types import Message, Turn

API_VERSION = "2023-06-01"
_HEADERS = {**STREAM_HEADERS, "anthropic-version": API_VERSION}
_UNKNOWN = "unknown"
"""Finish reason of an answer without a stop reason."""


class AnthropicDialect:
    """``/v1/messages``; a completion is sent as one user message.

    Args:
        cache: lifetime of the cached prompt prefix, ``5m`` or ``1h``; None for no caching.
    """

    name = "anthropic"
    exact_length = False
    ends_by_closing = False
    takes_messages = True

    def __init__(self, cache: str | None = None) -> None:
        self._cache_field = {"cache_control": {"type": "ephemeral", "ttl": cache}} if cache else {}

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:  # noqa: ARG002  (it has none)
        """A streamed request at temperature 0, without thinking; see :class:`~bakeoff.engines.dialects.base.Dialect`.

        System messages go into the field ``system``, because messages have only the roles user and assistant.
        """
        all_messages = turn.messages if turn.messages is not None else (Message("user", turn.prompt or ""),)
        system = "\n\n".join(message.content for message in all_messages if message.role == "system")
        messages = [{"role": m.role, "content": m.content} for m in all_messages if m.role != "system"]
        body: dict[str, Any] = {"model": model, "max_tokens": turn.output_tokens, "stream": True, "temperature": 0}
        if system:
            body["system"] = self._content(system)
        elif messages:
            messages[0]["content"] = self._content(messages[0]["content"])
        return HttpRequest("/v1/messages", _HEADERS, msgspec.json.encode({**body, "messages": messages}))

    def carriers(self, turn: Turn) -> Carriers:  # noqa: ARG002  (every turn is a conversation)
        """The settings of the format; thinking counts towards ``max_tokens``, which bounds the answer."""
        return {
            **same("temperature", "top_p", "top_k"),
            "stop": at("stop_sequences"),
            "reasoning_effort": at("output_config.effort"),
            "thinking_tokens": _thinking,
            "tools": _tools,
            "tool_choice": _tool_choice,
        }

    def _content(self, text: str) -> Any:  # noqa: ANN401  (only blocks, not plain strings, can be cached)
        return [{"type": "text", "text": text, **self._cache_field}] if self._cache_field else text

    def reader(self) -> EventReader:
        """A new reader, because usage comes in parts."""
        return _Reader()

    def refusal(self, status: int, body: bytes) -> str:
        """``HTTP 529: overloaded_error: Overloaded``; other engines may use the shapes of the OpenAI format."""
        try:
            return f"HTTP {status}: {_error_text(msgspec.json.decode(body, type=_Refusal).error)}"
        except failures.UNREADABLE:
            return failures.refusal(status, body)


def _thinking(body: dict[str, Any], tokens: int) -> None:
    """Thinking needs a budget below ``max_tokens``, and another temperature than 0."""
    body["thinking"] = {"type": "enabled", "budget_tokens": tokens}
    body["max_tokens"] += tokens
    if not body.get("temperature"):
        body.pop("temperature", None)


def _tools(body: dict[str, Any], tools: list[dict[str, Any]]) -> None:
    functions = [tool.get("function", tool) for tool in tools]
    body["tools"] = [
        {name if name != "parameters" else "input_schema": value for name, value in function.items()}
        for function in functions
    ]


def _tool_choice(body: dict[str, Any], choice: str | dict[str, Any]) -> None:
    words = {"required": "any"}
    name = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    body["tool_choice"] = {"type": "tool", "name": name} if name else {"type": words.get(str(choice), choice)}


class _Error(msgspec.Struct):
    type: str
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def _error_text(error: _Error) -> str:
    return failures.clip(f"{error.type}: {error.message}".encode())


class _Usage(msgspec.Struct, omit_defaults=True):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Delta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    message: _Message | str | None = None
    delta: _Delta | None = None
    content_block: _Delta | None = None
    usage: _Usage | None = None
    error: Any = None


class _Reader:
    """Decodes one answer."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Event)
        self._usage = _Usage()
        self._stop_reason: str | None = None

    def events(self, data: bytes) -> list[Event]:
        """See :class:`~bakeoff.engines.dialects.base.EventReader`."""
        try:
            return self._read(self._decoder.decode(data))
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]

    def _read(self, event: _Event) -> list[Event]:
        if event.error is not None:
            return [_fault(event.error)]
        match event.type:
            case "message_start" if isinstance(event.message, _Message):
                # Its output_tokens counts the tokens generated so far; without a later count, the answer has none.
                self._merge(event.message.usage or _Usage())
                self._usage.output_tokens = None
            case "content_block_start" if event.content_block is not None:
                return [_piece(event.content_block)] if _text(event.content_block) else []
            case "content_block_delta":
                return [_piece(event.delta or _Delta())]
            case "message_delta":
                self._stop_reason = (event.delta or _Delta()).stop_reason or self._stop_reason
                if event.usage is not None:
                    self._merge(event.usage)
                    return [self._counted()]
            case "message_stop":
                return [Finish(self._stop_reason or _UNKNOWN)]
            case _:
                pass
        return []

    def _merge(self, newer: _Usage) -> None:
        """Replace the fields that ``newer`` has."""
        for name in _Usage.__struct_fields__:
            value = getattr(newer, name)
            if value is not None:
                setattr(self._usage, name, value)

    def _counted(self) -> Usage:
        """Usage with the whole prompt: uncached tokens, tokens written to the cache and tokens read from it."""
        usage = self._usage
        parts = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
        reported = [part for part in parts if part is not None]
        return Usage(sum(reported) if reported else None, usage.output_tokens, usage.cache_read_input_tokens)


def _piece(delta: _Delta) -> Event:
    """The event of a delta or of the start of a block; signatures and citations are no tokens."""
    kind = TokenKind.TEXT
    if delta.thinking:
        kind = TokenKind.REASONING
    elif delta.partial_json:
        kind = TokenKind.TOOL
    text = _text(delta)
    return TokenDelta(text, kind=kind) if text else EmptyChunk()


def _text(delta: _Delta) -> str:
    return delta.thinking or delta.partial_json or delta.text or ""


def _fault(error: Any) -> StreamFault:  # noqa: ANN401  (some engines send strings)
    try:
        return StreamFault(_error_text(msgspec.convert(error, _Error)))
    except failures.UNREADABLE:
        return StreamFault(failures.error_text(error))
