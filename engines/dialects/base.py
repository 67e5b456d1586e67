"""The seam between traffic and a wire format. No I/O in it."""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from workloads.types import Turn


class TokenKind(StrEnum):
    """What a token belongs to; all of them are tokens."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"


class TokenDelta(msgspec.Struct, frozen=True):
    """A token-bearing piece of the answer: some text, or token ids, or both."""

    text: str
    token_ids: tuple[int, ...] | None = None
    """Exact ids, where the engine sends them."""
    logprobs: tuple[float, ...] | None = None
    """Natural logarithm of each token's probability, where they were asked for and the engine sends them."""
    kind: TokenKind = TokenKind.TEXT
    tokens: int | None = None
    """How many tokens it brought, where the engine says so without their ids."""


class Usage(msgspec.Struct, frozen=True):
    """The engine's own counts; the last one of a stream holds."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    in_choice: bool = False
    """Whether its chunk had choices too; some clients read usage only where it comes alone."""


class EmptyChunk(msgspec.Struct, frozen=True):
    """A chunk with choices but no token: a role, an empty piece, a finish reason of its own.

    It is no token; other benchmark clients take some of them for one (:mod:`results.views`).
    """


class Finish(msgspec.Struct, frozen=True):
    """The engine says that the answer is whole, and why it ended."""

    reason: str


class StreamFault(msgspec.Struct, frozen=True):
    """The engine reports a failure, possibly under HTTP status 200."""

    message: str


Event = TokenDelta | EmptyChunk | Usage | Finish | StreamFault


class HttpRequest(msgspec.Struct, frozen=True):
    """One request as bytes.

    Attributes:
        path: absolute, appended to the engine's base URL.
        headers: names in lower case.
        body: JSON.
    """

    path: str
    headers: dict[str, str]
    body: bytes

    def __repr__(self) -> str:
        """Without the values of headers: one of them may be a key."""
        return f"HttpRequest({self.path!r}, headers={sorted(self.headers)}, body={self.body!r})"


class EventReader(Protocol):
    """Reads one stream; made anew for each, because some formats say only what has changed since the last event."""

    def events(self, data: bytes) -> list[Event]:
        """What the ``data`` of one server-sent event means; garbage is a :class:`StreamFault`, never an exception."""
        ...


class Dialect(Protocol):
    """How one engine wants to be asked, and what its stream means.

    Pure: the same turn gives the same bytes, and the same payloads give the same events.
    """

    @property
    def name(self) -> str:
        """Name of the wire format."""
        ...

    @property
    def exact_length(self) -> bool:
        """Whether it can force the length of an answer; else the wanted length is an upper bound."""
        ...

    @property
    def ends_by_closing(self) -> bool:
        """Whether an orderly end of the stream is the only sign that an answer is whole: there is no finish reason."""
        ...

    @property
    def takes_messages(self) -> bool:
        """Whether the format has chats; else it takes only text."""
        ...

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """The bytes that ask ``model`` for exactly ``turn.output_tokens`` tokens, greedily, as a stream.

        Where the turn has a JSON schema, which ends an answer, that number is an upper bound. A format that has no
        schemas gives the bytes that it gives without one, by which :func:`holds_to_schema` knows.

        Args:
            turn: what is asked.
            model: what the request calls the model.
            logprobs: ask for the log-probability of each token too, where the format has them.
        """
        ...

    def reader(self) -> EventReader:
        """A reader for one answer."""
        ...

    def refusal(self, status: int, body: bytes) -> str:
        """One line for an answer whose status is not 200."""
        ...


def holds_to_schema(ask: Callable[[Turn, str], HttpRequest], turn: Turn) -> bool:
    """Whether the answer to a turn is held to its JSON schema.

    Args:
        ask: :meth:`Dialect.request`, or what renders the turn before it.
        turn: one with a schema.
    """
    free = msgspec.structs.replace(turn, json_schema=None)
    return ask(turn, "").body != ask(free, "").body
