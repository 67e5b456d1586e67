"""The OpenAI format as OpenAI's own service speaks it, or a gateway to it.

Its quirks: it pads events with random text unless ``include_obfuscation`` is false; chats bound the answer with
``max_completion_tokens``, since reasoning models refuse ``max_tokens``; usage counts reasoning tokens that no chunk
contains. Source: https://platform.openai.com/docs/api-reference/chat.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects import failures
from bakeoff.engines.dialects.base import Event, EventReader, TokenDelta, TokenKind, Usage
from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.workloads.types import Turn


class OpenAiServiceDialect(OpenAiDialect):
    """Unpadded events, and the newer name of the bound on a chat's answer."""

    name = "openai-service"

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """See :class:`~bakeoff.engines.dialects.openai.OpenAiDialect`."""
        fields = super().sampling(turn)
        if turn.messages is not None:
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        return {**fields, "stream_options": {"include_usage": True, "include_obfuscation": False}}

    def reader(self) -> EventReader:  # type: ignore[override]  (stateful)
        """A new reader, because the count depends on whether the answer showed its reasoning."""
        return _Reader(self)


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    usage: _Usage | None = None


class _Reader:
    """Subtracts hidden reasoning tokens from usage; they are in no chunk, so they would inflate the token rate."""

    def __init__(self, dialect: OpenAiServiceDialect) -> None:
        self._dialect = dialect
        self._shows_reasoning = False

    def events(self, data: bytes) -> list[Event]:
        """See :class:`~bakeoff.engines.dialects.base.EventReader`."""
        return [self._visible(event, data) for event in self._dialect.events(data)]

    def _visible(self, event: Event, data: bytes) -> Event:
        if isinstance(event, TokenDelta):
            self._shows_reasoning |= event.kind is TokenKind.REASONING
        if not isinstance(event, Usage) or event.output_tokens is None or self._shows_reasoning:
            return event
        return msgspec.structs.replace(event, output_tokens=event.output_tokens - _reasoning_tokens(data))


def _reasoning_tokens(data: bytes) -> int:
    try:
        usage = msgspec.json.decode(data, type=_Chunk).usage
    except failures.UNREADABLE:
        return 0
    details = usage.completion_tokens_details if usage else None
    return (details.reasoning_tokens or 0) if details else 0
