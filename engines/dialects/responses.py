"""OpenAI's Responses API, ``/v1/responses``, of the service and of engines that imitate it.

Source: https://platform.openai.com/docs/api-reference/responses-streaming. The format can neither force the length of
an answer nor return token ids; token counts come with the last event. Its quirks:

- The event type is read from the data, because some servers send no ``event:`` lines. ``[DONE]`` is not part of the
  format.
- An answer truncated by its bound ends with ``response.incomplete``, or with ``response.completed`` and a reason in
  ``incomplete_details``.
- Usage counts reasoning tokens that no event contains.
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
)
from bakeoff.engines.dialects.fields import Carriers, at, same
from bakeoff.engines.dialects.messages import response_items
from bakeoff.engines.dialects.openai import STREAM_HEADERS
from bakeoff.engines.dialects.sse import DONE
from bakeoff.engines.dialects.usage import stated_usage
from bakeoff.engines.dialects.values import items, mapping, number, text
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

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~bakeoff.engines.dialects.base.Dialect`."""
        content: Any = turn.prompt
        if turn.messages is not None:
            content = response_items(turn.messages)
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
        if data.startswith(DONE):
            return []
        try:
            event = msgspec.json.decode(data, type=dict[str, Any])
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]
        kind = text(event.get("type"))
        if event.get("error") or kind == "error":
            return [StreamFault(failures.error_text(event.get("error") or event.get("message") or data.decode()))]
        if kind in _KINDS:
            return [_piece(event, _KINDS[kind])]
        if kind in _ENDS:
            response = mapping(event.get("response"))
            return [response_end(response, kind), *_counts(response)]
        return []

    def refusal(self, status: int, body: bytes) -> str:
        return failures.refusal(status, body)


def _tools(body: dict[str, Any], tools: list[dict[str, Any]]) -> None:
    body["tools"] = [_flat(tool) for tool in tools]


def _tool_choice(body: dict[str, Any], choice: str | dict[str, Any]) -> None:
    body["tool_choice"] = choice if isinstance(choice, str) else _flat(choice)


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of a chat, or the choice of one, without the inner object."""
    return {name: value for name, value in tool.items() if name != "function"} | tool.get("function", {})


def _piece(event: Mapping[str, Any], kind: TokenKind) -> Event:
    delta = text(event.get("delta"))
    if not delta:
        return EmptyChunk()
    logprobs = [number(mapping(token).get("logprob")) for token in items(event.get("logprobs"))]
    known = tuple(logprob for logprob in logprobs if logprob is not None)
    return TokenDelta(delta, logprobs=known if known and len(known) == len(logprobs) else None, kind=kind)


def _counts(response: Mapping[str, Any]) -> list[Event]:
    usage = response.get("usage")
    return [stated_usage(usage)] if isinstance(usage, dict) else []


def response_end(response: Mapping[str, Any], kind: str) -> Event:
    """The finish reason, or a fault if the response failed; ``kind`` names the end if the response does not."""
    status = text(response.get("status"))
    if kind == "response.failed" or status == "failed":
        error = response.get("error")
        return StreamFault(failures.error_text(error) if error else "the server reports a failed response")
    incomplete = text(mapping(response.get("incomplete_details")).get("reason"))
    return Finish(incomplete or status or kind.removeprefix("response."))
