"""OpenAI's Responses, as the service and some engines speak them.

Each event says its type in its data; some servers send no ``event:`` lines, and none sends ``[DONE]``. An answer that
its bound cut off may come as ``response.incomplete``, or as ``response.completed`` with the reason in its details.
Neither the length can be forced nor token ids be had; counts come with the last event.
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
from workloads.types import Turn

_KINDS = {
    "response.output_text.delta": TokenKind.TEXT,
    "response.refusal.delta": TokenKind.TEXT,
    "response.reasoning_text.delta": TokenKind.REASONING,
    "response.reasoning_summary_text.delta": TokenKind.REASONING,
    "response.function_call_arguments.delta": TokenKind.TOOL,
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesDialect:
    """``/v1/responses``.

    Args:
        official: the service itself, which pads its events with random text unless it is told not to; engines may
            refuse a field that they do not know.
    """

    name = "openai-responses"
    exact_length = False
    ends_by_closing = False
    takes_messages = True

    def __init__(self, *, official: bool = False) -> None:
        self._unpadded = {"stream_options": {"include_obfuscation": False}} if official else {}

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~engines.dialects.base.Dialect`."""
        asked: Any = turn.prompt
        if turn.messages is not None:
            asked = [{"role": message.role, "content": message.content} for message in turn.messages]
        body: dict[str, Any] = {"model": model, "input": asked, "max_output_tokens": turn.output_tokens,
                                "stream": True, "temperature": 0, **self._unpadded}  # fmt: skip
        if turn.json_schema is not None:
            schema = msgspec.Raw(turn.json_schema.encode())
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
        if logprobs:
            body["include"] = ["message.output_text.logprobs"]
        return HttpRequest("/v1/responses", STREAM_HEADERS, msgspec.json.encode(body))

    def reader(self) -> EventReader:
        """One for each answer: whether thoughts were shown decides what the counts mean."""
        return _Reader()

    def refusal(self, status: int, body: bytes) -> str:
        """``HTTP 400: message``, from whichever error shape the server uses."""
        return failures.refusal(status, body)


class _LogProb(msgspec.Struct):
    logprob: float


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Thought(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Thought | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str | None = None
    delta: Any = None
    logprobs: list[_LogProb] | None = None
    response: _Response | None = None
    error: Any = None
    message: str | None = None


class _Reader:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Event)
        self._thought = False

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload; see :class:`~engines.dialects.base.EventReader`."""
        if data.startswith(b"[DONE]"):
            return []
        try:
            event = self._decoder.decode(data)
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]
        if event.error is not None or event.type == "error":
            return [StreamFault(failures.error_text(event.error or event.message or data.decode()))]
        if event.type in _KINDS:
            return [self._piece(event, _KINDS[event.type])]
        if event.type in _ENDS and event.response is not None:
            return [_end(event.type, event.response), *self._counts(event.response.usage)]
        return []

    def _piece(self, event: _Event, kind: TokenKind) -> Event:
        if not isinstance(event.delta, str) or not event.delta:
            return EmptyChunk()
        self._thought |= kind is TokenKind.REASONING
        logprobs = tuple(token.logprob for token in event.logprobs or ()) or None
        return TokenDelta(event.delta, logprobs=logprobs, kind=kind)

    def _counts(self, usage: _Usage | None) -> list[Event]:
        """What was counted; thoughts that were never shown came in no chunk, and would look like a faster pace."""
        if usage is None:
            return []
        cached, thought = usage.input_tokens_details, usage.output_tokens_details
        unseen = 0 if self._thought or thought is None else thought.reasoning_tokens or 0
        output = None if usage.output_tokens is None else usage.output_tokens - unseen
        return [Usage(usage.input_tokens, output, cached.cached_tokens if cached else None)]


def _end(kind: str, response: _Response) -> Event:
    """How it ended."""
    if kind == "response.failed" or response.status == "failed":
        why = failures.error_text(response.error) if response.error else "the server says that the response failed"
        return StreamFault(why)
    cut_off = response.incomplete_details and response.incomplete_details.reason
    return Finish(cut_off or response.status or kind.removeprefix("response."))
