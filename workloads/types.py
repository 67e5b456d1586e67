"""The value types of traffic: what is sent, in which order, and how long the answer should be."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from workloads.rng import Seed
from workloads.tokenizer import Tokenizer


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request.

    Exactly one of ``messages`` (chat) and ``prompt`` (completion) is set.
    """

    input_tokens: int
    """As the engine should count them: the chat template included."""
    output_tokens: int
    """Wanted length of the answer."""
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    think_s: float = 0.0
    """Seconds between the end of the session's last answer and this turn."""
    json_schema: str | None = None
    """The answer must follow this JSON schema; engines that can are held to it."""


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """Turns that follow one another: each waits for the answer to the last."""

    id: str
    turns: tuple[Turn, ...]
    start_s: float | None = None
    """When it started in the trace, or would by the workload's own arrival process; None where nothing says so."""


class Workload(Protocol):
    """A source of sessions. Implementations are frozen structs whose fields are the options."""

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Yield sessions, in the order of their start and without end unless they come from a file.

        The same seed yields the same bytes on every machine; a seed with other ``words`` the same lengths and times
        in other words.
        """
        ...

    def notes(self) -> list[str]:
        """What a reader of the result must know: scale, source, what is synthetic."""
        ...
