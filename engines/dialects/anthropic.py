"""Anthropic's Messages API, ``/v1/messages``, of the service and of engines that imitate it.

Source: https://docs.anthropic.com/en/api/messages-streaming. The format can neither force the length of an answer nor
send token ids, log-probabilities or token counts per chunk. Its quirks:

- Usage is spread over the stream: prompt counts come first, output counts later, and a repeated field replaces the
  earlier value.
- An answer is complete at ``message_stop``, not at its stop reason; ``[DONE]`` is not part of the format.
- Events of unknown types must be ignored.
"""

from collections.abc import Mapping
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
from bakeoff.engines.dialects.messages import anthropic_messages
from bakeoff.engines.dialects.openai import STREAM_HEADERS
from bakeoff.engines.dialects.sse import DONE
from bakeoff.engines.dialects.usage import stated_usage
from bakeoff.engines.dialects.values import count, mapping, text
from bakeoff.workloads.types import Message, Turn

API_VERSION = "2023-06-01"
_HEADERS = {**STREAM_HEADERS, "anthropic-version": API_VERSION}
_UNKNOWN = "unknown"
"""Finish reason of an answer without a stop reason."""
_PROMPT_FIELDS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""Counts of a usage, whose sum is the prompt's."""
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks of reasoning, which may come without its text."""


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
        messages = anthropic_messages([message for message in all_messages if message.role != "system"])
        body: dict[str, Any] = {"model": model, "max_tokens": turn.output_tokens, "stream": True, "temperature": 0}
        if system:
            body["system"] = self._content(system)
        elif messages and isinstance(messages[0]["content"], str):
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
            error = mapping(msgspec.json.decode(body)).get("error")
        except failures.UNREADABLE:
            error = None
        return f"HTTP {status}: {_error_text(error)}" if error else failures.refusal(status, body)


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


def _error_text(error: Any) -> str:  # noqa: ANN401  (some engines send strings)
    named = mapping(error)
    kind, message = text(named.get("type")), text(named.get("message"))
    return failures.clip(f"{kind}: {message}".encode()) if kind and message else failures.error_text(error)


class _Reader:
    """Decodes one answer."""

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}
        self._stop_reason = ""
        self._has_thoughts = self._shows_thoughts = False

    def events(self, data: bytes) -> list[Event]:
        if data.startswith(DONE):  # gateways to other formats add it
            return []
        try:
            return self._read(msgspec.json.decode(data, type=dict[str, Any]))
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]

    def _read(self, event: Mapping[str, Any]) -> list[Event]:
        if event.get("error"):
            return [StreamFault(_error_text(event["error"]))]
        match event.get("type"):
            case "message_start":
                self._merge(mapping(event.get("message")).get("usage"))
                # It counts the tokens generated so far; without a later count, the answer has none.
                self._usage.pop("output_tokens", None)
            case "content_block_start":
                block = mapping(event.get("content_block"))
                self._has_thoughts = self._has_thoughts or block.get("type") in _THOUGHTS
                return [self._said(block)] if _words(block) else []
            case "content_block_delta":
                return [self._said(mapping(event.get("delta")))]
            case "message_delta":
                self._stop_reason = text(mapping(event.get("delta")).get("stop_reason")) or self._stop_reason
                if isinstance(event.get("usage"), dict):
                    self._merge(event["usage"])
                    is_hidden = self._has_thoughts and not self._shows_thoughts
                    return [msgspec.structs.replace(anthropic_usage(self._usage), hides_reasoning=is_hidden)]
            case "message_stop":
                return [Finish(self._stop_reason or _UNKNOWN)]
            case _:
                pass
        return []

    def _said(self, delta: Mapping[str, Any]) -> Event:
        piece = _piece(delta)
        is_thought = isinstance(piece, TokenDelta) and piece.kind is TokenKind.REASONING
        self._shows_thoughts = self._shows_thoughts or is_thought
        return piece

    def _merge(self, newer: Any) -> None:  # noqa: ANN401  (any JSON value)
        """Replace the fields that ``newer`` has."""
        stated = {name: value for name, value in mapping(newer).items() if value is not None}
        if self._usage.get("input_tokens") and not any(stated.get(name) for name in _PROMPT_FIELDS):
            stated.pop("input_tokens", None)  # some gateways repeat the field without its value
        self._usage |= stated


def anthropic_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage with the whole prompt: uncached tokens, tokens written to the cache and tokens read from it."""
    parts = [part for name in _PROMPT_FIELDS if (part := count(usage.get(name))) is not None]
    return msgspec.structs.replace(stated_usage(usage), prompt_tokens=sum(parts) if parts else None)


def _piece(delta: Mapping[str, Any]) -> Event:
    """The event of a delta or of the start of a block; signatures and citations are no tokens."""
    kind = TokenKind.TEXT
    if text(delta.get("thinking")):
        kind = TokenKind.REASONING
    elif text(delta.get("partial_json")):
        kind = TokenKind.TOOL
    words = _words(delta)
    return TokenDelta(words, kind=kind) if words else EmptyChunk()


def _words(delta: Mapping[str, Any]) -> str:
    return text(delta.get("thinking")) or text(delta.get("partial_json")) or text(delta.get("text"))
