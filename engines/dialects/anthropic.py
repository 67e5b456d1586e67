"""Anthropic's Messages, as the service and some local engines speak them.

The format can neither force a length nor take token ids, and says no token counts by chunk. Usage is spread over the
stream: the first event has the prompt's, later ones have the answer's, and whichever field comes again is newer. An
answer is whole at ``message_stop``, not at its stop reason; there is no ``[DONE]``. Events of unknown types are
ignored, as its documents ask.
"""

from typing import Any

import msgspec

from engines.dialects import failures
from engines.dialects.base import (
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
from engines.dialects.openai import STREAM_HEADERS
from workloads.types import Message, Turn

API_VERSION = "2023-06-01"
_HEADERS = {**STREAM_HEADERS, "anthropic-version": API_VERSION}
_UNKNOWN = "unknown"
"""Reason of an end without a stop reason."""


class AnthropicDialect:
    """``/v1/messages``; completions are asked as one message of the user.

    Args:
        cache: how long the service shall keep the beginning of the prompt: ``5m`` or ``1h``; None for not at all.
    """

    name = "anthropic"
    exact_length = False
    ends_by_closing = False
    takes_messages = True

    def __init__(self, cache: str | None = None) -> None:
        self._mark = {"cache_control": {"type": "ephemeral", "ttl": cache}} if cache else {}

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:  # noqa: ARG002  (it has none)
        """A streamed request with the least randomness that there is; see :class:`~engines.dialects.base.Dialect`.

        No thinking is asked for. What the system says goes beside the messages, whose roles are two.
        """
        said = turn.messages if turn.messages is not None else (Message("user", turn.prompt or ""),)
        system = "\n\n".join(message.content for message in said if message.role == "system")
        messages = [{"role": message.role, "content": message.content} for message in said if message.role != "system"]
        body: dict[str, Any] = {"model": model, "max_tokens": turn.output_tokens, "stream": True, "temperature": 0}
        if system:
            body["system"] = self._marked(system)
        elif messages:
            messages[0]["content"] = self._marked(messages[0]["content"])
        return HttpRequest("/v1/messages", _HEADERS, msgspec.json.encode({**body, "messages": messages}))

    def _marked(self, text: str) -> Any:  # noqa: ANN401  (a text, or a block of it that can carry the mark)
        return [{"type": "text", "text": text, **self._mark}] if self._mark else text

    def reader(self) -> EventReader:
        """One for each answer: usage comes in parts."""
        return _Reader()

    def refusal(self, status: int, body: bytes) -> str:
        """``HTTP 529: overloaded_error: Overloaded``; local engines may answer in the shapes of the OpenAI format."""
        try:
            return f"HTTP {status}: {_said(msgspec.json.decode(body, type=_Refusal).error)}"
        except failures.UNREADABLE:
            return failures.refusal(status, body)


class _Error(msgspec.Struct):
    type: str
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def _said(error: _Error) -> str:
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
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Event)
        self._usage = _Usage()
        self._stop_reason: str | None = None

    def events(self, data: bytes) -> list[Event]:
        """See :class:`~engines.dialects.base.EventReader`."""
        try:
            return self._read(self._decoder.decode(data))
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]

    def _read(self, event: _Event) -> list[Event]:
        if event.error is not None:
            return [_fault(event.error)]
        match event.type:
            case "message_start" if isinstance(event.message, _Message):
                # Its count of output tokens is of what was made so far, not a part of the sum.
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
        """Take what has come, field by field."""
        for name in _Usage.__struct_fields__:
            value = getattr(newer, name)
            if value is not None:
                setattr(self._usage, name, value)

    def _counted(self) -> Usage:
        """The whole prompt: what was neither read from the cache nor written to it, what was written, what was read."""
        usage = self._usage
        parts = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
        known = [part for part in parts if part is not None]
        return Usage(sum(known) if known else None, usage.output_tokens, usage.cache_read_input_tokens)


def _piece(delta: _Delta) -> Event:
    """What a delta, or the beginning of a block, says; a signature or a citation is no token."""
    kind = TokenKind.TEXT
    if delta.thinking:
        kind = TokenKind.REASONING
    elif delta.partial_json:
        kind = TokenKind.TOOL
    text = _text(delta)
    return TokenDelta(text, kind=kind) if text else EmptyChunk()


def _text(delta: _Delta) -> str:
    return delta.thinking or delta.partial_json or delta.text or ""


def _fault(error: Any) -> StreamFault:  # noqa: ANN401  (local engines send strings too)
    try:
        return StreamFault(_said(msgspec.convert(error, _Error)))
    except failures.UNREADABLE:
        return StreamFault(failures.error_text(error))
