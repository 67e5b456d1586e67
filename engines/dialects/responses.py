"""OpenAI's Responses API, ``/v1/responses``, of the service and of engines that imitate it.

Source: https://platform.openai.com/docs/api-reference/responses-streaming. The format can neither force the length of
an answer nor return token ids; token counts come with the last event. Its quirks:

- The event type is read from the data, because some servers send no ``event:`` lines. ``[DONE]`` is not part of the
  format.
- An answer truncated by its bound ends with ``response.incomplete``, or with ``response.completed`` and a reason in
  ``incomplete_details``.
- Usage counts reasoning tokens that no event contains.
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
from bakeoff.workloads.types import Turn

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
        official: whether it is OpenAI's service, which pads events with random text unless a field disables that;
            engines may refuse the field.
    """

    name = "openai-responses"
    exact_length = False
    ends_by_closing = False
    takes_messages = True

    def __init__(self, *, official: bool = False) -> None:
        self._unpadded = {"stream_options": {"include_obfuscation": False}} if official else {}
        self._decoder = msgspec.json.Decoder(_Event)

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~bakeoff.engines.dialects.base.Dialect`."""
        content: Any = turn.prompt
        if turn.messages is not None:
            content = [{"role": message.role, "content": message.content} for message in turn.messages]
        body: dict[str, Any] = {"model": model, "input": content, "max_output_tokens": turn.output_tokens,
                                "stream": True, "temperature": 0, **self._unpadded}  # fmt: skip
        if turn.json_schema is not None:
            schema = msgspec.Raw(turn.json_schema.encode())
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
        if logprobs:
            body["include"] = ["message.output_text.logprobs"]
        return HttpRequest("/v1/responses", STREAM_HEADERS, msgspec.json.encode(body))

    def carriers(self, turn: Turn) -> Carriers:  # noqa: ARG002  (every input is a conversation)
        """The settings of the format; tools are flat in it."""
        return {**same("temperature", "top_p"), "reasoning_effort": at("reasoning.effort"), "tools": _tools,
                "tool_choice": _tool_choice}  # fmt: skip

    def reader(self) -> EventReader:
        """The dialect itself, because events of this format do not depend on earlier ones."""
        return self

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload; see :class:`~bakeoff.engines.dialects.base.EventReader`."""
        if data.startswith(b"[DONE]"):
            return []
        try:
            event = self._decoder.decode(data)
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]
        if event.error is not None or event.type == "error":
            return [StreamFault(failures.error_text(event.error or event.message or data.decode()))]
        if event.type in _KINDS:
            return [_piece(event, _KINDS[event.type])]
        if event.type in _ENDS and event.response is not None:
            return [_end(event.type, event.response), *_counts(event.response.usage)]
        return []

    def refusal(self, status: int, body: bytes) -> str:
        """See :func:`bakeoff.engines.dialects.failures.refusal`."""
        return failures.refusal(status, body)


class _LogProb(msgspec.Struct):
    logprob: float


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


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


def _tools(body: dict[str, Any], tools: list[dict[str, Any]]) -> None:
    body["tools"] = [_flat(tool) for tool in tools]


def _tool_choice(body: dict[str, Any], choice: str | dict[str, Any]) -> None:
    body["tool_choice"] = choice if isinstance(choice, str) else _flat(choice)


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of a chat, or the choice of one, without the inner object."""
    return {name: value for name, value in tool.items() if name != "function"} | tool.get("function", {})


def _piece(event: _Event, kind: TokenKind) -> Event:
    if not isinstance(event.delta, str) or not event.delta:
        return EmptyChunk()
    logprobs = tuple(token.logprob for token in event.logprobs or ()) or None
    return TokenDelta(event.delta, logprobs=logprobs, kind=kind)


def _counts(usage: _Usage | None) -> list[Event]:
    if usage is None:
        return []
    inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
    cached, reasoning = inputs and inputs.cached_tokens, (outputs and outputs.reasoning_tokens) or None
    return [Usage(usage.input_tokens, usage.output_tokens, cached, reasoning_tokens=reasoning)]


def _end(kind: str, response: _Response) -> Event:
    """The finish reason, or a fault if the response failed."""
    if kind == "response.failed" or response.status == "failed":
        message = failures.error_text(response.error) if response.error else "the server reports a failed response"
        return StreamFault(message)
    incomplete = response.incomplete_details and response.incomplete_details.reason
    return Finish(incomplete or response.status or kind.removeprefix("response."))
