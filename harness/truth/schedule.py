"""The truth server's answers, their timing, and the faults that it injects."""

import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Literal, Self

import msgspec

from bakeoff.harness.errors import BadSchedule
from bakeoff.results.units import NS_PER_S


class Fault(StrEnum):
    """A way in which an answer fails. *Half* is half of its chunks, at least one."""

    HTTP_429 = "http_429"
    """Status 429 with a ``retry-after`` header, at once."""
    HTTP_500 = "http_500"
    HTTP_503 = "http_503"
    RESET = "reset"
    """Half of the tokens; the connection is reset when the next ones are due."""
    TRUNCATED = "truncated"
    """Half of the tokens; then the connection closes in the middle of the chunked body."""
    STALL = "stall"
    """Half of the tokens, then nothing; the connection stays open."""
    ERROR_EVENT = "error_event"
    """Half of the tokens, then an error event and an orderly end under status 200."""
    NO_FINISH = "no_finish"
    """All tokens and an orderly end of the body, without finish reason, usage or ``[DONE]``."""


_KIND = re.compile(r"(\d+)([rtc])")
_MOST_KINDS = 100_000
_ANSWER_TIMES = ("ttft_s", "itl_s", "prompt_token_s")


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The timing of every answer, from the read that completed its request, and its format and faults.

    Times are rounded to nanoseconds. A late write does not delay the ones after it.

    Raises:
        BadSchedule: a value is out of range, or two contradict each other.
    """

    ttft_s: float = 0.05
    """Delay of the first chunk of tokens, in seconds."""
    itl_s: float = 0.01
    """Gap between two chunks of tokens, in seconds."""
    tokens_per_chunk: int = 1
    """Tokens in each chunk (one server-sent event); the last one carries the remainder."""
    events_per_write: int = 1
    """Chunks of tokens in each write. A write is due when its last chunk is, as in a server that flushes every n-th
    token, so the first write is due ``(n - 1) * itl_s`` after ``ttft_s``."""
    slots: int | None = None
    """Concurrent answers; further requests wait in order of arrival, and their timetable begins when they get a slot.
    None: unlimited. With n slots and answers of s seconds the capacity is n / s requests per second."""
    prompt_token_s: float = 0.0
    """Seconds that each prompt token outside the prefix cache adds to ``ttft_s``."""
    cache_tokens: int | None = None
    """Size of a simulated prefix cache, in tokens; None: no cache."""
    cache_block_tokens: int = 16
    """Tokens in each block of that cache."""
    jitter: Literal["none", "exponential"] = "none"
    """Whether each gap is ``itl_s`` or drawn from an exponential distribution with that mean."""
    seed: int = 0
    """Seeds gaps and faults, together with the number of the request."""
    role_chunk: Literal["with_first", "early"] | None = None
    """Chat only: an empty chunk with the role, in a write of its own right before the first tokens or on arrival."""
    finish_chunk: bool = True
    """Whether the finish reason comes in an empty chunk after the last token, or on the last token's chunk."""
    comments: bool = False
    """Whether to write a comment (``: ping``) half-way between two writes of tokens."""
    crlf: bool = False
    """Whether the lines of events end in CRLF instead of LF."""
    write_bytes: int | None = None
    """Send the body in pieces of at most this many bytes, each in a ``send`` of its own; None: whole writes."""
    multibyte: bool = False
    """Whether tokens are ``é``, ``漢`` and ``🙂`` in turn instead of `` a``."""
    usage: Literal["exact", "absent", "lying"] = "exact"
    """The usage that a request asks for: correct, absent, or with twice the output tokens."""
    done: bool = True
    """Whether a stream ends with ``data: [DONE]``."""
    token_ids: bool = True
    """Whether chunks carry ``token_ids``."""
    kinds: str = ""
    """Kinds of the first tokens of a chat, as ``20r5t2c``: 20 of reasoning (r), 5 of text (t), 2 of a tool call (c);
    the rest are text. A chunk has the kind of its first token."""
    hidden_tokens: int = 0
    """Tokens of reasoning that the usage counts and no chunk shows."""
    faults: Mapping[Fault, float] = {}
    """Fraction of the requests that get each fault, 0 to 1, drawn independently per request; the sum is at most 1."""
    stalls: tuple[tuple[float, float], ...] = ()
    """Pauses ``(at_s, length_s)`` in seconds after the first request: nothing is written during a pause, and everything
    that was due is written at its end."""
    restart: tuple[float, float] | None = None
    """``(at_s, down_s)``: ``at_s`` seconds after the first request every connection is reset, and nothing listens for
    ``down_s`` seconds."""

    def __post_init__(self) -> None:
        problem = next((message for valid, message in _checks(self) if not valid), None)
        if problem:
            raise BadSchedule(f"schedule: {problem}")

    @property
    def is_replica(self) -> bool:
        """Whether it simulates what a router depends on: the time of the prompt, or a prefix cache."""
        return self.prompt_token_s > 0 or self.cache_tokens is not None

    def slowed(self, factor: float) -> Self:
        """The same with all times of answers multiplied.

        Raises:
            BadSchedule: the factor is no number above 0.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise BadSchedule(f"slow must be a number above 0, not {factor}")
        times_s = {name: getattr(self, name) * factor for name in _ANSWER_TIMES}
        return msgspec.structs.replace(self, **times_s)

    def kinds_of_tokens(self) -> str:
        """One letter for each token whose kind ``kinds`` states."""
        return "".join(letter * int(count) for count, letter in _KIND.findall(self.kinds))

    def due_ns(self, start_ns: int, chunk: int) -> int:
        """When chunk ``chunk`` (from 0) of an answer to a request at ``start_ns`` is due, without jitter."""
        return start_ns + to_ns(self.ttft_s) + chunk * to_ns(self.itl_s)

    def dues_ns(self, start_ns: int, number: int, chunks: int, uncached_tokens: int = 0) -> list[int]:
        """When each of the ``chunks`` chunks of request ``number`` is due, jitter included, writes not considered.

        ``uncached_tokens`` are those of its prompt that the prefix cache did not hold.
        """
        gaps = itertools.islice(self.gaps_ns(number), max(0, chunks - 1))
        return list(itertools.accumulate(gaps, initial=start_ns + self.ttft_ns(uncached_tokens)))

    def ttft_ns(self, uncached_tokens: int) -> int:
        """Delay of the first chunk of tokens of a prompt with so many tokens outside the prefix cache."""
        return to_ns(self.ttft_s) + to_ns(uncached_tokens * self.prompt_token_s)

    def gaps_ns(self, number: int) -> Iterator[int]:
        """The gaps between chunks of request ``number`` (from 0); endless."""
        itl_ns = to_ns(self.itl_s)
        if self.jitter == "none" or not itl_ns:
            return itertools.repeat(itl_ns)
        draw = random.Random(f"{self.seed}/gaps/{number}").expovariate  # noqa: S311  (no secret)
        return (round(draw(1 / itl_ns)) for _ in itertools.repeat(None))

    def fault(self, number: int) -> Fault | None:
        """The fault of request ``number`` (from 0), if any."""
        if not self.faults:
            return None
        drawn = random.Random(f"{self.seed}/fault/{number}").random()  # noqa: S311  (no secret)
        for fault in Fault:  # in this order, so that the order of the mapping does not matter
            drawn -= self.faults.get(fault, 0)
            if drawn < 0:
                return fault
        return None


def to_ns(seconds: float) -> int:
    """Seconds in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def _checks(schedule: Schedule) -> Iterator[tuple[bool, str]]:
    """Whether each rule holds, and the message if it does not."""
    for name in _ANSWER_TIMES:
        value = getattr(schedule, name)
        yield _length(value), f"{name} must be 0 or more seconds, not {value}"
    for name in ("tokens_per_chunk", "events_per_write"):
        value = getattr(schedule, name)
        yield value >= 1, f"{name} must be at least 1, not {value}"
    yield schedule.slots is None or schedule.slots >= 1, "slots must be at least 1, or left out"
    yield schedule.cache_block_tokens >= 1, "cache_block_tokens must be at least 1"
    yield (
        schedule.cache_tokens is None or schedule.cache_tokens >= schedule.cache_block_tokens,
        "cache_tokens must hold at least one block of cache_block_tokens, or be left out",
    )
    yield schedule.write_bytes is None or schedule.write_bytes >= 1, "write_bytes must be at least 1, or left out"
    for name, choices in (
        ("jitter", ("none", "exponential")),
        ("role_chunk", (None, "with_first", "early")),
        ("usage", ("exact", "absent", "lying")),
    ):
        value = getattr(schedule, name)
        yield value in choices, f"{name} must be one of {', '.join(map(str, choices)).lower()}, not {value!r}"
    yield _KIND.sub("", schedule.kinds) == "", f"kinds are counts and letters, as 20r5t2c, not {schedule.kinds!r}"
    yield (
        sum(int(count) for count, _ in _KIND.findall(schedule.kinds)) <= _MOST_KINDS,
        f"kinds may state {_MOST_KINDS:,} tokens at most",
    )
    yield schedule.hidden_tokens >= 0, f"hidden_tokens must not be negative, not {schedule.hidden_tokens}"
    yield from _fault_checks(schedule.faults)
    ends_s = 0.0
    for at_s, length_s in schedule.stalls:
        yield _length(at_s) and _length(length_s), f"stall {at_s}:{length_s} must be two numbers of seconds, 0 or more"
        yield at_s >= ends_s, f"stall {at_s}:{length_s} begins before the one before it ends; give them in order"
        ends_s = at_s + length_s
    at_s, down_s = schedule.restart or (0, 0)
    yield _length(at_s) and _length(down_s), f"restart {at_s}:{down_s} must be two numbers of seconds, 0 or more"


def _fault_checks(faults: Mapping[Fault, float]) -> Iterator[tuple[bool, str]]:
    for name, share in faults.items():
        yield name in list(Fault), f"no fault '{name}'; known: {', '.join(Fault)}"
        yield 0 <= share <= 1, f"the share of {name} must be between 0 and 1, not {share}"
    total = sum(faults.values())
    yield total <= 1 + 1e-9, f"the shares of the faults add up to {total:g}; they may not exceed 1"


def _length(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
