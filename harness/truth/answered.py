"""What a request asked of the truth server, and what really happened to its answer."""

from enum import StrEnum

import msgspec

from harness.truth.schedule import Fault

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    FAULT = "fault"
    """As its fault wants."""
    HANGUP = "hangup"
    """The client closed the connection, or used it for something else."""
    RESTART = "restart"
    """The schedule's restart cut it off."""
    STOPPED = "stopped"
    """The server was closed."""


class Asked(msgspec.Struct, kw_only=True):
    """One request: with the schedule it fixes every byte of the answer."""

    number: int = 0
    """Of the request, from 0, in the order in which they came; refused (400) and other requests have none."""
    path: str = COMPLETIONS
    model: str = "truth"
    tokens: int
    """Output tokens asked for."""
    prompt_tokens: int = 1
    """Of a prompt given as ids their number, else its words; at least 1."""
    stream: bool = True
    usage_asked: bool = True
    """Whether the request wanted usage (``stream_options.include_usage``)."""
    fault: Fault | None = None
    cached_tokens: int | None = None
    """Of the prompt, from a prefix cache; None: there is none, and usage says nothing of it."""

    @property
    def chat(self) -> bool:
        """Whether it came by the chat path."""
        return self.path == CHAT


class Answered(Asked, kw_only=True):
    """What really happened to one answer; times are nanoseconds of the host's monotonic clock."""

    connection: int = 0
    """Number of the connection, from 0, in the order in which they were accepted."""
    start_ns: int
    """Right after the read that completed the request."""
    begun_ns: int | None = None
    """When its turn came, after waiting for a slot; None where it did not wait."""
    written_ns: list[int] = []
    """For each token-bearing chunk, right before the ``send`` that took its first byte. An answer that is no stream
    counts as one chunk."""
    role_ns: int | None = None
    """The same for the empty chunk with the role."""
    finish_ns: int | None = None
    """The same for the empty chunk with the finish reason."""
    ended_ns: int | None = None
    """After the last byte, or the moment of the fault, hang-up, restart or stop; None while under way."""
    ending: Ending | None = None
    """None while under way."""
    sends: list[tuple[int, int]] = []
    """Every ``send`` that took bytes, HTTP framing included, as (when, how many bytes); empty when each write of the
    timetable went out whole in one ``send``, which the other times then tell."""
