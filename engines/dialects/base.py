"""The interface between traffic and a wire format. No I/O."""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from bakeoff.workloads.types import Turn


class TokenKind(StrEnum):
    """The part of the answer that a token belongs to; all kinds count as tokens."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"


class TokenDelta(msgspec.Struct, frozen=True):
    """A piece of the answer with tokens: text, token ids or both."""

    text: str
    token_ids: tuple[int, ...] | None = None
    """Exact ids, if the engine sends them."""
    logprobs: tuple[float, ...] | None = None
    """Natural logarithm of each token's probability, if requested and sent."""
    kind: TokenKind = TokenKind.TEXT
    tokens: int | None = None
    """Number of tokens, if the engine sends it without their ids."""
    choice: int = 0
    """Which of several answers to the request it is of."""


class Usage(msgspec.Struct, frozen=True):
    """The engine's token counts as it states them; a later event of this type replaces the counts that it has.

    Attributes:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens of the answer, with or without those of reasoning that was not streamed.
        cached_tokens: part of the prompt that came from the prefix cache.
        in_choice: whether its chunk also had choices; some clients read usage only from chunks without choices.
        reasoning_tokens: part of the answer that is reasoning.
        total_tokens: of prompt and answer, where reasoning is stated, since it tells whether ``output_tokens`` includes
            it, or where ``output_tokens`` is not.
        image_tokens: part of the prompt that are images.
        hides_reasoning: whether the answer has reasoning that was not streamed, whose tokens are not stated.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    in_choice: bool = False
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    image_tokens: int | None = None
    hides_reasoning: bool = False


class EmptyChunk(msgspec.Struct, frozen=True):
    """A chunk with choices but without a token: a role, empty text, or only a finish reason.

    Other benchmark clients count some of these as tokens (:mod:`bakeoff.results.views`).

    Attributes:
        unread: name of a field that has content and is not read; empty if there is none.
    """

    unread: str = ""


class Finish(msgspec.Struct, frozen=True):
    """The engine states why the answer ended.

    Values that state nothing, such as an empty string, and those that state a failure are told apart when the stream is
    decoded, so that a dialect passes them on as they are.
    """

    reason: str


class StreamFault(msgspec.Struct, frozen=True):
    """The engine reports a failure, possibly under HTTP status 200."""

    message: str


Event = TokenDelta | EmptyChunk | Usage | Finish | StreamFault


SESSION_ID, REQUEST_ID = "{session}", "{request}"
"""Placeholders in headers: the client writes an id of the conversation and of the request, new in each trial."""


class HttpRequest(msgspec.Struct, frozen=True):
    """One request as bytes.

    Attributes:
        path: absolute, appended to the engine's base URL.
        headers: names in lower case; values may have the placeholders :data:`SESSION_ID` and :data:`REQUEST_ID`.
        body: JSON.
        is_streamed: whether the answer is a stream of events; otherwise it is one JSON document.
    """

    path: str
    headers: dict[str, str]
    body: bytes
    is_streamed: bool = True

    def __repr__(self) -> str:
        """Without the values of headers, which can be keys."""
        return f"HttpRequest({self.path!r}, headers={sorted(self.headers)}, body={self.body!r})"


class EventReader(Protocol):
    """Decodes one stream. Each stream needs a new reader, because events can depend on earlier ones."""

    def events(self, data: bytes) -> list[Event]:
        """Decode the ``data`` of one server-sent event; invalid data is a :class:`StreamFault`, never an exception."""
        ...


class Dialect(Protocol):
    """Encodes requests to one engine and decodes its streams.

    Deterministic: equal turns give equal bytes, and equal payloads give equal events.
    """

    @property
    def name(self) -> str:
        """Name of the wire format."""
        ...

    @property
    def exact_length(self) -> bool:
        """Whether it can force the length of an answer; otherwise the requested length is an upper bound."""
        ...

    @property
    def ends_by_closing(self) -> bool:
        """Whether streams have no finish reason, so that an orderly close is the only sign of a complete answer."""
        ...

    @property
    def takes_messages(self) -> bool:
        """Whether the format has chats; otherwise it takes only text."""
        ...

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """Encode a request for exactly ``turn.output_tokens`` tokens, decoded greedily and streamed.

        With a JSON schema, which ends an answer by itself, that number is an upper bound. A format without schemas
        ignores the schema, which :func:`holds_to_schema` detects.

        Args:
            turn: the prompt or messages, the length and the schema.
            model: value of ``model`` in the request.
            logprobs: also request the log-probability of each token, if the format has them.
        """
        ...

    def reader(self) -> EventReader:
        """A reader for one answer."""
        ...

    def refusal(self, status: int, body: bytes) -> str:
        """Error in one line, from a response whose status is not 200."""
        ...


def holds_to_schema(ask: Callable[[Turn, str], HttpRequest], turn: Turn) -> bool:
    """Whether the request for a turn enforces the turn's JSON schema.

    Args:
        ask: :meth:`Dialect.request`, or a function that renders the turn first.
        turn: a turn with a schema.
    """
    other = msgspec.structs.replace(turn, json_schema='{"type":"null"}')
    return ask(turn, "").body != ask(other, "").body
