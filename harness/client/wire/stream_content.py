"""The content of one exchange: tokens, usage and end of a stream of events, or of a whole answer."""

import re
from http import HTTPStatus
from itertools import groupby, pairwise
from typing import Any, Protocol

import msgspec

from bakeoff.engines.dialects import (
    Dialect,
    EmptyChunk,
    ErrorData,
    Event,
    EventReader,
    Finish,
    SseParser,
    StreamFault,
    TokenDelta,
    Usage,
    whole_answer,
)
from bakeoff.engines.dialects.failures import UNREADABLE, clip, error_in
from bakeoff.engines.dialects.sse import DONE
from bakeoff.harness.client.wire.plausibility import impossible_count
from bakeoff.harness.host.threads import check_cancelled

_NO_REASON = frozenset({"", "null", "none"})
"""Finish reasons, in lower case, that say nothing."""
_GIVEN_UP = re.compile(
    r"(?:.*_)?(?<!no_)(?<!without_)(?:abort|cancel|crash|disconnect|error|evict|exception|insufficient_system|kv_cache"
    r"|overload|preempt|timeout)[a-z]*(?:_.*)?"
    r"|(?:.*_)?(?:fail(?:ed|ure)?|oom|out_of_memory|timed_out)(?:_.*)?|interrupt(?:ed|ion)?"
)
"""Finish reasons of an answer that the server gave up, in lower case, their words joined by ``_``."""
_REPEATING = 4
"""Chunks that must each begin with the one before, so that they are taken for the whole text so far."""
_COMPRESSED_STARTS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""Of gzip, of Zstandard, and of deflate at each of its levels."""
COMPRESSED = "the answer is compressed, although no compression was asked for; switch it off in the proxy"
_CONTROLS = frozenset(range(9)) | frozenset(range(14, 27))
"""Bytes that no text has."""
_ERROR_FIELDS = frozenset({"error", "errors", "code"})
"""Of JSON between events, one of which an error has."""
FIRST_CHARS = 120


class Stated(msgspec.Struct, frozen=True):
    """A count of output tokens in a stream.

    Attributes:
        deltas: chunks with tokens so far.
        tokens: as counted by the server.
        t_ns: its arrival.
        in_choice: whether its event has choices, and not the count alone.
    """

    deltas: int
    tokens: int
    t_ns: int
    in_choice: bool


class DecodedStream(msgspec.Struct):
    """The content of one stream.

    Attributes:
        deltas: arrival in nanoseconds and content of each chunk with tokens.
        empty_chunk_ns: arrival of each chunk without a token.
        usage: token counts of the engine, each the last that it stated.
        usage_ns: arrival of the last ones.
        stated: each count of output tokens.
        is_done: whether the mark behind the last event arrived.
        behind_end: events with tokens behind that mark, which are no part of the answer.
        last_event_ns: arrival of the last event.
        finish: finish reason of the engine.
        fault: first failure that the engine reported.
        answer_id: ``id`` of the first event.
        is_continued: whether tokens came behind a finish reason, which then ends nothing.
        unread: name of the first field that has content and is not read.
        stray: lines between the events that are no field of one.
    """

    deltas: list[tuple[int, TokenDelta]] = []
    empty_chunk_ns: list[int] = []
    usage: Usage = Usage()
    usage_ns: int | None = None
    stated: list[Stated] = []
    is_done: bool = False
    behind_end: int = 0
    last_event_ns: int | None = None
    finish: str | None = None
    fault: str | None = None
    answer_id: str | None = None
    is_continued: bool = False
    unread: str = ""
    stray: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the server said that the answer is complete: by a reason, or by its usage and the end mark."""
        if self.is_done and (self.finish is not None or self.usage.output_tokens is not None):
            return True
        has_last_usage = self.usage.output_tokens is not None and not self.usage.in_choice
        return self.finish is not None and (has_last_usage or not self.is_continued)

    @property
    def is_told_whole(self) -> bool:
        """Whether it is whole, and more than a reason says so, so that nothing can have followed."""
        return self.is_whole and (self.is_done or self.usage.output_tokens is not None)


class Reads(Protocol):
    """The reads of one exchange: a stored one, or one that has just ended."""

    @property
    def read_ns(self) -> list[int]:
        """When each arrived."""
        ...

    @property
    def reads(self) -> list[bytes]:
        """Their body bytes."""
        ...

    @property
    def is_streamed(self) -> bool:
        """Whether they are a stream of events."""
        ...

    @property
    def passages(self) -> int | None:
        """Texts that the request embeds or ranks."""
        ...


_COUNTED = (Usage, TokenDelta)
"""Events with counts; a union would be made anew for each event."""


class _Identified(msgspec.Struct):
    id: str | None = None


def read_stream(stream: Reads, dialect: Dialect) -> DecodedStream:
    """Decode the events of one exchange; each arrived with the read that completed it."""
    decoded = DecodedStream()
    if not stream.is_streamed:
        _read_whole(decoded, stream)
        return decoded
    parser, reader = SseParser(), dialect.reader()
    for t_ns, read in zip(stream.read_ns, stream.reads, strict=True):
        check_cancelled()  # an answer may have a million events
        payloads = parser.feed(read)
        if payloads and decoded.last_event_ns is None:
            decoded.answer_id = _answer_id(payloads[0])
        for data in payloads:
            _read_payload(decoded, t_ns, reader, data)
    for data in parser.rest():
        if data.startswith(DONE) or is_object(data):  # whole, though no blank line ends it
            _read_payload(decoded, stream.read_ns[-1], reader, data)
    _take_stray(decoded, parser.stray)
    _subtract_repeated(decoded)
    if decoded.deltas and not decoded.usage.output_tokens:  # zeros of the first events, which no others followed
        prompt_tokens = decoded.usage.prompt_tokens or None
        decoded.usage = msgspec.structs.replace(decoded.usage, output_tokens=None, prompt_tokens=prompt_tokens)
        decoded.stated = []
    places = [place for place, _ in groupby(delta.choice for _, delta in decoded.deltas)]
    if len(places) > (choices := len(set(places))):  # others number the parts of one answer
        decoded.fault = decoded.fault or f"{choices} answers came at once, which no figure tells apart; ask for n = 1"
    return decoded


def is_success(status: int | None) -> bool:
    """Whether the status of a response, if there was one, says that the request was taken."""
    return status is None or HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


def is_answer(stream: Reads, dialect: Dialect, *, is_reset: bool = False) -> bool:
    """Whether the reads of a successful exchange are a whole answer, without an error and with tokens.

    Args:
        stream: the reads.
        dialect: of the engine.
        is_reset: whether the connection broke behind them.
    """
    decoded = read_stream(stream, dialect)
    is_ended = decoded.is_told_whole if is_reset else decoded.is_whole or dialect.ends_by_closing
    return is_ended and decoded.fault is None and bool(decoded.deltas)


def _read_payload(decoded: DecodedStream, t_ns: int, reader: EventReader, data: bytes) -> None:
    """Add the events of one payload."""
    events = _events(reader, data)
    if decoded.is_done:  # of another answer, as of a proxy that tried again
        decoded.behind_end += any(isinstance(event, TokenDelta) for event in events)
        return
    decoded.is_done = data.startswith(DONE)
    decoded.last_event_ns = t_ns
    ends = has_tokens = False
    for event in events:
        _add(decoded, t_ns, event)
        ends, has_tokens = ends or isinstance(event, Finish), has_tokens or isinstance(event, TokenDelta)
    if ends and not has_tokens:
        decoded.is_continued = False
    if isinstance(data, ErrorData):
        decoded.fault = decoded.fault or f"the server reports an error: {clip(data)}"


def _read_whole(decoded: DecodedStream, stream: Reads) -> None:
    """Decode an answer that is one document, which arrived with its last read."""
    body, end_ns = b"".join(stream.reads), stream.read_ns[-1] if stream.read_ns else 0
    if not body:
        return
    if is_compressed(body):
        decoded.fault = COMPRESSED
        return
    for event in whole_answer(body, stream.passages):
        _add(decoded, end_ns, event)
    decoded.last_event_ns, decoded.answer_id = end_ns, _answer_id(body)


def _take_stray(decoded: DecodedStream, stray: bytes) -> None:
    """Keep what stood between the events, which may be the error of a server or proxy."""
    try:
        document = msgspec.json.decode(stray, type=dict[str, Any]) if stray else {}
    except UNREADABLE:
        document = {}
    error = error_in(document) if document.keys() & _ERROR_FIELDS else None
    decoded.fault, decoded.stray = decoded.fault or error, clip(stray, FIRST_CHARS)


def _subtract_repeated(decoded: DecodedStream) -> None:
    """Leave only what is new in deltas of which each, or the last alone, repeats the whole text so far."""
    texts = [delta.text for _, delta in decoded.deltas]
    if len(texts) > _REPEATING and texts[-1] == "".join(texts[:-1]) and not decoded.deltas[-1][1].token_ids:
        decoded.deltas.pop()
        return
    grows = all(len(before) < len(after) and after.startswith(before) for before, after in pairwise(texts))
    if len(texts) < _REPEATING or not grows or any(delta.token_ids for _, delta in decoded.deltas):
        return
    starts = [0, *map(len, texts)]
    decoded.deltas = [
        (t_ns, msgspec.structs.replace(delta, text=delta.text[start:]))
        for (t_ns, delta), start in zip(decoded.deltas, starts, strict=False)
    ]


def _events(reader: EventReader, data: bytes) -> list[Event]:
    """The events of one payload; a dialect of another package that raises fails this answer, not the trial."""
    try:
        return list(reader.events(data))
    except Exception as error:  # noqa: BLE001
        name = type(reader).__qualname__
        return [StreamFault(f"{name}.events failed with {type(error).__name__}: {error}; the event: {clip(data)}")]


def _add(decoded: DecodedStream, t_ns: int, event: Event) -> None:
    if isinstance(event, _COUNTED) and (problem := impossible_count(event)):
        decoded.fault = decoded.fault or problem
        return
    match event:
        case TokenDelta():
            decoded.deltas.append((t_ns, event))
            decoded.is_continued = decoded.is_continued or decoded.finish is not None
        case EmptyChunk():
            decoded.empty_chunk_ns.append(t_ns)
            decoded.unread = decoded.unread or event.unread
        case Usage():
            decoded.usage, decoded.usage_ns = _merged(decoded, event), t_ns
            if decoded.usage.output_tokens is not None:
                count, tokens = len(decoded.deltas), decoded.usage.output_tokens
                decoded.stated.append(Stated(count, tokens, t_ns, event.in_choice))
        case Finish():
            _end(decoded, event.reason)
        case StreamFault():
            decoded.fault = decoded.fault or event.message


def _end(decoded: DecodedStream, reason: str) -> None:
    word = reason.strip().lower()
    words = word.replace(" ", "_").replace("-", "_")
    if _GIVEN_UP.fullmatch(words):
        decoded.fault = decoded.fault or f"the server gave up the answer: its finish reason is '{reason}'"
    elif word not in _NO_REASON:
        decoded.finish = reason


def _merged(decoded: DecodedStream, newer: Usage) -> Usage:
    """The newer counts, and earlier ones where it has none; zeros behind an answer state nothing."""
    if decoded.deltas and not newer.output_tokens:
        newer = msgspec.structs.replace(newer, output_tokens=None, prompt_tokens=newer.prompt_tokens or None)
    earlier, count = decoded.usage, len(decoded.deltas)
    are_totals = not (newer.in_choice or earlier.in_choice) and any(
        (each.deltas, each.tokens) == (count, earlier.output_tokens) for each in decoded.stated[-1:]
    )
    if are_totals and (newer.output_tokens or 0) < min(earlier.output_tokens or 0, count):
        newer = msgspec.structs.replace(newer, output_tokens=None)  # a part of the answer, of another server behind it
    missing = {name: getattr(earlier, name) for name in Usage.__struct_fields__ if getattr(newer, name) is None}
    return msgspec.structs.replace(newer, **missing)


def _answer_id(payload: bytes) -> str | None:
    try:
        return msgspec.json.decode(payload, type=_Identified).id
    except UNREADABLE:
        return None


def is_compressed(body: bytes) -> bool:
    """Whether an answer begins as compressed data does; Brotli's has no mark, but bytes that no text has."""
    return body.startswith(_COMPRESSED_STARTS) or not _CONTROLS.isdisjoint(body[:FIRST_CHARS])


def is_object(data: bytes) -> bool:
    """Whether bytes are a JSON object."""
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except UNREADABLE:
        return False
