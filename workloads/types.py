"""Value types of traffic: sessions, turns and messages, and the interface of workloads."""

from collections.abc import Iterator
from typing import Protocol, Self, runtime_checkable

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request.

    Exactly one of ``messages`` (chat) and ``prompt`` (completion) is set.
    """

    input_tokens: int
    """Tokens of the prompt as the engine should count them, including the chat template."""
    output_tokens: int
    """Requested length of the answer."""
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    think_s: float = 0.0
    """Seconds between the end of the session's last answer and this turn."""
    json_schema: str | None = None
    """JSON schema that the answer must follow, sent to engines that support it."""


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """Turns sent one after another: each waits for the answer to the previous one."""

    id: str
    turns: tuple[Turn, ...]
    start_s: float | None = None
    """Start time in the trace or by the workload's arrival process, in seconds; None if unknown."""


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
