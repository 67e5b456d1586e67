"""A virtual engine's record of one request: the true values for a run's metrics."""

from enum import StrEnum

import msgspec

from bakeoff.harness.virtual.engine import Fault
from bakeoff.results.records import Phase


class Ending(StrEnum):
    """How a request ended, seen by the server."""

    COMPLETE = "complete"
    FAULT = "fault"
    DROPPED = "dropped"
    """The client dropped it."""
    DIED = "died"
    """The engine crashed."""


class Served(msgspec.Struct, kw_only=True):
    """One request; times are nanoseconds of the run's clock. Filled in as the request progresses.

    Attributes:
        start: of the engine within the run, from 1.
        trial: id of its trial; None outside trials, such as in warm-up rounds.
        phase: as sent by the client.
        prompt_tokens: as counted by the server.
        cached_tokens: prompt tokens from the prefix cache; None without a cache, or if it never got a slot.
        asked_tokens: requested length of the answer.
        fault: its fault, if any.
        tokens: length of the answer without the fault.
        arrived_ns: when it arrived.
        begun_ns: when it got a slot; None if it never did.
        chunk_ns: when each chunk with tokens was sent.
        chunk_tokens: tokens in each chunk.
        ended_ns: when the last byte was sent or the exchange failed; None while in progress.
        ending: how it ended; None while in progress.
    """

    start: int
    trial: str | None
    phase: Phase
    prompt_tokens: int
    asked_tokens: int
    tokens: int
    fault: Fault | None
    arrived_ns: int
    cached_tokens: int | None = None
    begun_ns: int | None = None
    chunk_ns: list[int] = []
    chunk_tokens: list[int] = []
    ended_ns: int | None = None
    ending: Ending | None = None
