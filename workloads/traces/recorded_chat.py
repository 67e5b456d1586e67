"""Chat messages and tools as OpenAI's API and the recordings of its clients have them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bakeoff.workloads.traces.checks import quoted
from bakeoff.workloads.types import Message, ToolCall

Tools = list[dict[str, Any]]
"""Functions that the model may call."""


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content; only text can be replayed."""

    type: str
    text: str | None = None


class Function(msgspec.Struct, frozen=True):
    """The function that a call names, with its arguments as JSON text or as an object."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class Call(msgspec.Struct, frozen=True):
    """A call of a tool."""

    function: Function | None = None
    id: str = ""
    type: str = "function"


class RecordedMessage(msgspec.Struct, frozen=True):
    """A message; servers name its reasoning in one of two ways."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Call] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


def messages_of(recorded: Sequence[RecordedMessage]) -> tuple[Message, ...]:
    """The messages to send.

    Raises:
        ValueError: a message has a call that is not of a function in ``tool_calls``, or content other than text.
    """
    return tuple(_message(message) for message in recorded)


def calls_of(calls: Sequence[Call]) -> tuple[ToolCall, ...]:
    """The calls to send; one without a function is left out.

    Raises:
        ValueError: a call is not of a function.
    """
    odd = next((call.type for call in calls if call.type != "function"), None)
    if odd is not None:
        raise _unknown_call(quoted(odd))
    return tuple(
        ToolCall(call.id, call.function.name, _arguments(call.function)) for call in calls if call.function is not None
    )


def tools_text(tools: Tools | None) -> str | None:
    """Tools as JSON text; None if there are none."""
    return msgspec.json.encode(tools).decode() if tools else None


def _message(message: RecordedMessage) -> Message:
    if message.function_call is not None or message.role == "function":
        raise _unknown_call("the older form (function_call)")
    return Message(
        message.role,
        _text(message.content),
        calls_of(message.tool_calls or ()),
        message.tool_call_id,
        reasoning=message.reasoning_content or message.reasoning or "",
    )


def _unknown_call(kind: str) -> ValueError:
    return ValueError(f"a message has a call of {kind}; only calls of functions in tool_calls can be replayed")


def _arguments(function: Function) -> str:
    arguments = function.arguments
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _text(content: str | list[Part] | None) -> str:
    """A message's text; empty if an assistant only called tools."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise ValueError(f"a message has a part of type {quoted(part.type)}; only text can be replayed")
    return "".join(part.text or "" for part in content)
