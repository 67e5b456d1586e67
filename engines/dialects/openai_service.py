"""The OpenAI format as OpenAI's own service speaks it."""

from typing import Any

import msgspec

from engines.dialects import failures
from engines.dialects.base import Event, EventReader, TokenDelta, TokenKind, Usage
from engines.dialects.openai import OpenAiDialect
from workloads.types import Turn


class OpenAiServiceDialect(OpenAiDialect):
    """Without the random text that pads its events, and with the newer name of the bound on a chat's answer."""

    name = "openai-service"

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """See :class:`~engines.dialects.openai.OpenAiDialect`."""
        fields = super().sampling(turn)
        if turn.messages is not None:
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        return {**fields, "stream_options": {"include_usage": True, "include_obfuscation": False}}

    def reader(self) -> EventReader:  # type: ignore[override]  (this one remembers)
        """One for each answer: whether thoughts were shown decides what the counts mean."""
        return _Reader(self)


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    usage: _Usage | None = None


class _Reader:
    """Takes thoughts that were never shown out of the counts: having come in no chunk, they would look like pace."""

    def __init__(self, dialect: OpenAiServiceDialect) -> None:
        self._dialect = dialect
        self._thought = False

    def events(self, data: bytes) -> list[Event]:
        """See :class:`~engines.dialects.base.EventReader`."""
        return [self._seen(event, data) for event in self._dialect.events(data)]

    def _seen(self, event: Event, data: bytes) -> Event:
        if isinstance(event, TokenDelta):
            self._thought |= event.kind is TokenKind.REASONING
        if not isinstance(event, Usage) or event.output_tokens is None or self._thought:
            return event
        return msgspec.structs.replace(event, output_tokens=event.output_tokens - _reasoning_tokens(data))


def _reasoning_tokens(data: bytes) -> int:
    try:
        usage = msgspec.json.decode(data, type=_Chunk).usage
    except failures.UNREADABLE:
        return 0
    details = usage.completion_tokens_details if usage else None
    return (details.reasoning_tokens or 0) if details else 0
