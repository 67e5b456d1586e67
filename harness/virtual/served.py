"""What a virtual engine did with one request: the truth that a run's figures can be held to."""

from enum import StrEnum

import msgspec

from harness.virtual.engine import Fault
from results.records import Phase


class Ending(StrEnum):
    """How a request ended, as the server knows it."""

    COMPLETE = "complete"
    FAULT = "fault"
    DROPPED = "dropped"
    """The client gave it up."""
    DIED = "died"
    """The engine ended."""


class Served(msgspec.Struct, kw_only=True):
    """One request, in nanoseconds of the run's clock. Filled in as it goes on.

    Attributes:
        start: of the engine within the run, from 1.
        trial: its id; None for what belongs to no trial, such as settling rounds.
        phase: as the client sent it.
        prompt_tokens: as the server counted them.
        cached_tokens: of these, from its prefix cache; None where it has none, or they never got there.
        asked_tokens: length of the answer that was asked for.
        fault: what was to befall it.
        tokens: of the answer, had nothing gone wrong.
        arrived_ns: when the server had it.
        begun_ns: when it got a slot; None where it never did.
        chunk_ns: when each chunk with tokens left.
        chunk_tokens: how many were in each.
        ended_ns: when the last byte left, or the exchange broke; None while under way.
        ending: how.
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
