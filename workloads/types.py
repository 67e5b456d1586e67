"""The value types of traffic: what is sent, in which order, and how long the answer should be."""

from collections.abc import Iterator
from typing import Protocol, Self, runtime_checkable

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


@runtime_checkable
class SupportsOwnRate(Protocol):
    """A workload that knows its own rate."""

    def own_rate_per_s(self) -> float | None:
        """Sessions per second; None where nothing says when they start."""
        ...


@runtime_checkable
class SupportsReach(Protocol):
    """A workload that can leave out what a load of some length cannot reach."""

    def within(self, reach_s: float) -> Self:
        """The same without most of the turns that come after more than ``reach_s`` seconds of pauses."""
        ...


@runtime_checkable
class SupportsPrimers(Protocol):
    """A workload whose sessions may share system prompts."""

    def primers(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:
        """Yield one short session for each of them, to prime a cache with."""
        ...


@runtime_checkable
class SupportsStarts(Protocol):
    """A workload that knows when sessions start without making them."""

    def starts(self, seed: Seed) -> Iterator[float]:
        """Yield the starts in seconds, in their order; nothing where all come at once."""
        ...


@runtime_checkable
class SupportsFigures(Protocol):
    """A workload that has figures of its own."""

    def extra_figures(self, seed: Seed) -> dict[str, float]:
        """The figures by name."""
        ...
