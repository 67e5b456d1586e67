"""Results of other tools, as what all of them share: an engine, a load, and the records of its requests."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bakeoff.results.errors import NotImportable
from bakeoff.results.log.consistency import MAX_SPAN_S, MAX_TOKENS
from bakeoff.results.records import Load, Outcome, Phase, RequestRecord, StreamEnd, TokenSource
from bakeoff.results.units import NS_PER_S


class Imported(msgspec.Struct, frozen=True):
    """One measurement.

    Attributes:
        engine: label.
        model: as requests named it.
        backend: the tool's name for the API.
        load: of the measurement.
        requests: at least one.
        measured_utc: when it began, ISO 8601; None if the file does not say.
    """

    engine: str
    model: str
    backend: str
    load: Load
    requests: list[RequestRecord]
    measured_utc: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One request as a file holds it; times in seconds on one clock.

    Attributes:
        session: name of its conversation.
        turn: its position there, from 0.
        start_s: when it was sent.
        end_s: when it ended.
        planned_s: when it was planned; None for ``start_s``.
        arrivals_s: arrival of each chunk with a token, as far as the file holds them.
        tokens: of the answer.
        prompt_tokens: of the prompt.
        text: of the answer.
        error: why it failed; None if it did not.
        status: HTTP status, if it failed with one.
        was_cancelled: whether the tool gave it up at its end.
        is_whole: whether it was not streamed, so that its tokens came at its end.
    """

    session: str
    turn: int = 0
    start_s: float
    end_s: float
    planned_s: float | None = None
    arrivals_s: Sequence[float] = ()
    tokens: int = 0
    prompt_tokens: int | None = None
    text: str = ""
    error: str | None = None
    status: int | None = None
    was_cancelled: bool = False
    is_whole: bool = False


UNMEASURED = "the file states 0 s to the first token, which is no measurement"
_MAX_CLOCK_S = 9e9
"""Seconds since 1970, or since a machine started, that nanoseconds in 64 bits can count."""
_ROUNDING_S = 1e-6
"""An answer may seem to end so much before its last token: seconds since 1970 have no finer steps than 0.24 µs."""


def is_unmeasured(start_s: float, arrivals_s: Sequence[float]) -> bool:
    """Whether an answer's first token is stated to have come when its request was sent, as tools do without a time."""
    return bool(arrivals_s) and arrivals_s[0] <= start_s


def record_of(answer: Answer, index: int, place: str) -> RequestRecord:
    """The record of a request.

    If there are fewer arrivals than tokens, the first has one token and the rest are spread evenly, as the tools' own
    means do.

    Args:
        answer: as read.
        index: its position in the file.
        place: of the file, for errors.

    Raises:
        NotImportable: a time or a count is impossible.
    """
    if answer.arrivals_s and 0 < answer.arrivals_s[-1] - answer.end_s <= _ROUNDING_S:
        answer = msgspec.structs.replace(answer, end_s=answer.arrivals_s[-1])
    planned_s = answer.start_s if answer.planned_s is None else answer.planned_s
    times = [planned_s, answer.start_s, *answer.arrivals_s, answer.end_s]
    is_odd = not all(map(math.isfinite, times)) or times != sorted(times) or times[-1] - times[0] > MAX_SPAN_S
    is_odd = is_odd or abs(times[-1]) > _MAX_CLOCK_S
    if is_odd or not 0 <= answer.tokens <= MAX_TOKENS or not 0 <= (answer.prompt_tokens or 0) <= MAX_TOKENS:
        raise NotImportable(f"{place}: request {index} has impossible times or numbers of tokens; correct the file")
    if answer.error is None and is_unmeasured(answer.start_s, answer.arrivals_s):
        error = UNMEASURED if answer.tokens or len(answer.arrivals_s) > 1 else None
        answer = msgspec.structs.replace(answer, arrivals_s=(), error=error)
    has_failed = answer.error is not None or answer.was_cancelled
    is_whole = not has_failed and not answer.arrivals_s and answer.tokens > 0 and answer.is_whole
    arrivals = [] if has_failed else [_ns(time_s) for time_s in ((answer.end_s,) if is_whole else answer.arrivals_s)]
    counts, source = ([answer.tokens], TokenSource.COUNTS) if is_whole else _counts(arrivals, answer.tokens)
    return RequestRecord(
        index=index,
        phase=Phase.MEASURED,
        session=answer.session,
        turn=answer.turn,
        planned_ns=_ns(planned_s),
        sent_ns=_ns(answer.start_s),
        ended_ns=_ns(answer.end_s),
        outcome=_outcome(answer, arrivals),
        status=answer.status if has_failed else 200,
        is_streamed=not is_whole,
        end=None if has_failed else StreamEnd.COMPLETE,
        first_byte_ns=arrivals[0] if arrivals else None,
        chunk_ns=arrivals,
        chunk_tokens=counts,
        token_source=source,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.tokens or None,
        error=answer.error,
        text=answer.text,
    )


def checked_load(load: Load, place: str) -> Load:
    """The load of a file.

    Raises:
        NotImportable: its rate or its concurrency is impossible.
    """
    rate, slots, cap = load.rate_per_s, load.concurrency, load.max_in_flight
    if (rate is not None and not 0 < rate < math.inf) or any(
        number is not None and number < 1 for number in (slots, cap)
    ):
        raise NotImportable(f"{place} states an impossible load ({load.label}); correct the file")
    return load


def peak_in_flight(answers: Sequence[Answer]) -> int:
    """The most requests in flight at once: the concurrency of a closed loop whose file does not state it."""
    changes = sorted([(answer.start_s, 1) for answer in answers] + [(answer.end_s, -1) for answer in answers])
    level = peak = 0
    for _, change in changes:
        level += change
        peak = max(peak, level)
    return peak


def first_of(value: Any, *names: str) -> Any:  # noqa: ANN401  (any JSON value)
    """The first value that is not None under one of several names, in nested objects and lists, outermost first."""
    level = [value]
    while level:
        objects = [item for item in level if isinstance(item, Mapping)]
        for item in objects:
            found = next((item[name] for name in names if item.get(name) is not None), None)
            if found is not None:
                return found
        inner = [child for item in objects for child in item.values()]
        level = inner + [child for item in level if isinstance(item, list) for child in item]
    return None


def _ns(time_s: float) -> int:
    return round(time_s * NS_PER_S)


def _counts(arrivals: Sequence[int], tokens: int) -> tuple[list[int], TokenSource | None]:
    if not arrivals:
        return [], None
    if len(arrivals) == tokens:
        return [1] * tokens, TokenSource.CHUNKS
    if len(arrivals) > tokens:  # another tokenizer, or chunks without a token
        return [1] * len(arrivals), TokenSource.ASSUMED
    if len(arrivals) == 1:
        return [tokens], TokenSource.APPORTIONED
    rest, gaps = tokens - 1, len(arrivals) - 1
    return [1, *(rest * (i + 1) // gaps - rest * i // gaps for i in range(gaps))], TokenSource.APPORTIONED


def _outcome(answer: Answer, arrivals: Sequence[int]) -> Outcome:
    if answer.was_cancelled:
        return Outcome.CANCELLED
    if answer.error is not None:
        return Outcome.STREAM_ERROR if answer.status in {None, 200} else Outcome.HTTP_ERROR
    return Outcome.OK if arrivals else Outcome.EMPTY
