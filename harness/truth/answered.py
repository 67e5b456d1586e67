"""Requests for completions, and the record of what happened to their answers."""

from enum import StrEnum

import msgspec

from bakeoff.harness.truth.schedule import Fault

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    FAULT = "fault"
    """As its fault prescribes."""
    HANGUP = "hangup"
    """The client closed the connection, or used it for something else."""
    RESTART = "restart"
    """The schedule's restart cut it off."""
    STOPPED = "stopped"
    """The server was closed."""


class CompletionRequest(msgspec.Struct, kw_only=True):
    """One request; together with the schedule it determines every byte of the answer."""

    number: int = 0
    """From 0, in order of arrival; refused requests (400) and those for other paths are not counted."""
    path: str = COMPLETIONS
    model: str = "truth"
    tokens: int
    """Requested output tokens."""
    prompt_tokens: int = 1
    """Ids of a prompt given as token ids, else its words; at least 1. With a prefix cache a chat's roles count."""
    stream: bool = True
    usage_asked: bool = True
    """Whether the request asked for usage (``stream_options.include_usage``)."""
    fault: Fault | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in a prefix cache; None if there is no cache, and then usage does not mention it."""

    @property
    def chat(self) -> bool:
        """Whether it came on the chat path."""
        return self.path == CHAT

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that were not found in a prefix cache."""
        return self.prompt_tokens - (self.cached_tokens or 0)


class Answered(CompletionRequest, kw_only=True):
    """What happened to one answer; times are nanoseconds of the host's monotonic clock."""

    connection: int = 0
    """Number of the connection, from 0, in order of acceptance."""
    start_ns: int
    """Read right after the ``recv`` that completed the request."""
    begun_ns: int | None = None
    """When it got a slot; None if it did not wait for one."""
    written_ns: list[int] = []
    """For each chunk with tokens, the time right before the ``send`` that took its first byte. An answer that is not
    streamed counts as one chunk."""
    role_ns: int | None = None
    """The same for the empty chunk with the role."""
    finish_ns: int | None = None
    """The same for the empty chunk with the finish reason."""
    ended_ns: int | None = None
    """After the last byte, or the time of the fault, hang-up, restart or stop; None while in progress."""
    ending: Ending | None = None
    """None while in progress."""
    sends: list[tuple[int, int]] = []
    """Time and byte count (HTTP framing included) of every ``send`` that took bytes. Empty if each write of the
    timetable went out whole in one ``send``: then the other times are complete."""


class ReplicaAnswered(Answered, kw_only=True):
    """What happened to one answer of a replica."""

    replica: int
    """Its number, from 1."""
    queue_s: float
    """Seconds that the request waited for a slot."""
