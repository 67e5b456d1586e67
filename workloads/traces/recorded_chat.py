"""Chat messages and tools as OpenAI's API and the recordings of its clients have them."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from bakeoff.workloads.traces.checks import RequestedTokens, quoted
from bakeoff.workloads.types import Message, ToolCall

Tools = list[dict[str, Any]]
"""Functions that the model may call."""
UNNAMED_TOOL = "recorded_tool"
"""Stands for the function that an answer called, if the trace does not name it."""


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


class ChatBody(msgspec.Struct, frozen=True):
    """What is replayed of the body of a request: its prompt, its tools and the length of the answer."""

    messages: list[RecordedMessage] | None = None
    prompt: str | list[Any] | None = None
    tools: Tools | None = None
    max_tokens: RequestedTokens | None = None
    max_completion_tokens: RequestedTokens | None = None

    def checked_prompt(self) -> tuple[tuple[Message, ...], str | None]:
        """The messages, or the prompt of a completion.

        Raises:
            ValueError: it has neither, has both, or has what cannot be replayed, such as pictures.
        """
        if self.messages == [] or self.prompt == "":
            raise ValueError("its prompt is empty")
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("its body must hold either messages or a prompt")
        messages = messages_of(self.messages or [])
        if messages and not any(message.content or message.tool_calls for message in messages):
            raise ValueError("its prompt is empty")
        return messages, _prompt(self.prompt)


class Lengths(msgspec.Struct, frozen=True):
    """Lengths of an answer among further fields of a body."""

    max_tokens: RequestedTokens | None = None
    max_completion_tokens: RequestedTokens | None = None


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


def continued(
    history: tuple[Message, ...], messages: tuple[Message, ...], tool: str = UNNAMED_TOOL
) -> tuple[Message, ...]:
    """A chat and the messages of its next request, where the answer between them is not recorded.

    Chat templates need alternating roles, so an empty message takes the place of the answer. If results of tools
    follow, it calls ``tool`` once for each.
    """
    if not history or history[-1].role == "assistant" or (messages and messages[0].role == "assistant"):
        return history + messages
    results = itertools.takewhile(lambda message: message.role == "tool", messages)
    calls = tuple(ToolCall(result.tool_call_id or "", tool, "{}") for result in results)
    return (*history, Message("assistant", "", calls), *messages)


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


def _prompt(prompt: str | list[Any] | None) -> str | None:
    """The prompt as one text; the API also accepts lists of texts or of token ids."""
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise ValueError("its prompt is a list; only a list of one text can be replayed")
        return prompt[0]
    return prompt
