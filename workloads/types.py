"""Value types of traffic: sessions, turns and messages, and the interface of workloads."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Protocol, Self, runtime_checkable

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a function by the assistant."""

    id: str
    name: str
    arguments: str
    """JSON object as text."""


class Image(msgspec.Struct, frozen=True):
    """A synthetic picture; equal values give equal pixels."""

    width: int
    height: int
    key: int = 0


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One chat message."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Of a tool's result: the call that it answers."""
    images: tuple[Image, ...] = ()
    reasoning: str = ""
    """What the assistant thought before it. Only chats of the OpenAI format send it: other APIs take back nothing but
    reasoning that they signed."""

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it, without pictures: arguments of calls are objects."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _object(call)}}
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            fields["tool_call_id"] = self.tool_call_id
        if self.reasoning:
            fields["reasoning_content"] = self.reasoning
        return fields


def _object(call: ToolCall) -> Any:  # noqa: ANN401  (any JSON value)
    """Arguments of a call; the text as it is if it is no JSON."""
    try:
        return msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return call.arguments


class Check(StrEnum):
    """How an answer is scored."""

    NUMBER = "number"
    """Its last number, or the one behind ``####``, is the expected one."""
    SCHEMA = "schema"
    """It is JSON that follows a schema."""
    CALLS = "calls"
    """It calls the expected functions with the expected arguments; or any of the given functions, with arguments that
    follow its parameters, where nothing is expected."""


class Expected(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a right answer is."""

    check: Check
    value: str
    """The number, the JSON schema, or JSON of :class:`ExpectedCalls`."""


class ExpectedCalls(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a right call of functions is."""

    functions: dict[str, Any]
    """JSON schema of each function's parameters, by its name."""
    calls: list[dict[str, dict[str, list[Any]]]] | None = None
    """The right calls in any order: a function's name, and for each argument its right values; an empty text among them
    allows to leave it out (BFCL's form). None: any call that fits."""


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request.

    Exactly one of ``messages`` (chat), ``prompt`` (completion) and ``passages`` is set; ``prompt`` and ``passages``
    together are a query and the documents to rank.
    """

    input_tokens: int
    """Tokens of the prompt as the engine should count them, including the chat template."""
    output_tokens: int
    """Requested length of the answer; 1 for passages, whose answer has no tokens."""
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    think_s: float = 0.0
    """Seconds between the end of the answers that it waits for and this turn; before a session's first turn, it counts
    only if ``parents`` is given."""
    json_schema: str | None = None
    """JSON schema that the answer must follow, sent to engines that support it."""
    passages: tuple[str, ...] | None = None
    """Texts to embed, or to rank by ``prompt``."""
    tools: str | None = None
    """JSON list of the functions that the model may call, in the form of OpenAI's chats."""
    expected: Expected | None = None
    """What a right answer is, which is then scored."""
    parents: tuple[int, ...] | None = None
    """Positions in the session of the turns whose answers it waits for, all before its own; empty for the session's
    start. None for the previous turn, as in a conversation."""
    lags_s: tuple[float, ...] = ()
    """Seconds that each parent goes on after its answer, such as a sub-agent that ends with a tool; empty for none."""
    agent: str = ""
    """The agent whose conversation it continues; empty for the session's main agent."""
    recorded_s: float = 0.0
    """Seconds that the answer took where it was recorded; 0 if that is unknown."""

    @property
    def ends_by_itself(self) -> bool:
        """Whether the model ends the answer, so that ``output_tokens`` is an upper bound."""
        return self.json_schema is not None or self.expected is not None or self.tools is not None

    @property
    def has_images(self) -> bool:
        """Whether the prompt has pictures, whose tokens only the engine can count."""
        return any(message.images for message in self.messages or ())


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """Turns that wait for each other's answers: a conversation, or a graph of the calls of several agents.

    A turn that no other waits for is a background call. The session ends with its last answer.
    """

    id: str
    turns: tuple[Turn, ...]
    start_s: float | None = None
    """Start time in the trace or by the workload's arrival process, in seconds; None if unknown."""
    traffic_class: str = ""
    """Its class, if the traffic has several."""


class Workload(Protocol):
    """A source of sessions. Implementations are frozen structs whose fields are the options."""

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Yield sessions in the order of their start; endless unless they come from a file.

        The same seed yields the same bytes on every machine. A seed that differs only in ``words`` yields the same
        lengths and times with other text.
        """
        ...

    def notes(self) -> list[str]:
        """Remarks for readers of a result: scale, source, synthetic parts."""
        ...


@runtime_checkable
class SupportsOwnRate(Protocol):
    """A workload with a rate of its own."""

    def own_rate_per_s(self) -> float | None:
        """Sessions per second; None without start times."""
        ...


@runtime_checkable
class SupportsReach(Protocol):
    """A workload that can leave out turns beyond the end of a load."""

    def within(self, reach_s: float) -> Self:
        """The same workload without most turns that follow more than ``reach_s`` seconds of pauses."""
        ...


@runtime_checkable
class SupportsPrimers(Protocol):
    """A workload whose sessions may share system prompts."""

    def primers(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Yield one short session per system prompt, to prime a cache."""
        ...


@runtime_checkable
class SupportsStarts(Protocol):
    """A workload that can draw start times without sessions."""

    def starts(self, seed: Seed) -> Iterator[float]:
        """Yield start times in seconds, in order; nothing if all sessions start at once."""
        ...


@runtime_checkable
class SupportsFigures(Protocol):
    """A workload with extra figures for its profile."""

    def extra_figures(self, seed: Seed) -> dict[str, float]:
        """The figures by name."""
        ...
