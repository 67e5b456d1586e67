"""Decodes raw reads into request records: pure functions, run after the trial."""

import re
from collections.abc import Iterable, Sequence
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
    TokenKind,
    Usage,
    whole_answer,
)
from bakeoff.engines.dialects.failures import UNREADABLE, clip, error_in, refusal
from bakeoff.engines.dialects.sse import DONE
from bakeoff.engines.secrets import masked
from bakeoff.harness.client.plausibility import impossible_count
from bakeoff.harness.client.scoring import Answer, is_right
from bakeoff.harness.client.token_counts import counts_of_whole, hidden_tokens, streamed_tokens, token_counts
from bakeoff.results.records import Exchange, Outcome, RequestRecord, StreamEnd, StreamRecord
from bakeoff.workloads import Tokenizer
from bakeoff.workloads.types import Check, Expected

_TRANSPORT_OUTCOMES = {
    StreamEnd.REFUSED: Outcome.REFUSED,
    StreamEnd.TIMEOUT: Outcome.TIMEOUT,
    StreamEnd.CANCELLED: Outcome.CANCELLED,
    StreamEnd.RESET: Outcome.STREAM_ERROR,
    StreamEnd.TOO_LARGE: Outcome.TOO_LARGE,
}

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
_LETTERS = {TokenKind.TEXT: "t", TokenKind.REASONING: "r", TokenKind.TOOL: "c"}
_COMPRESSED_STARTS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""Of gzip, of Zstandard, and of deflate at each of its levels."""
_COMPRESSED = "the answer is compressed, although no compression was asked for; switch it off in the proxy"
_CONTROLS = frozenset(range(9)) | frozenset(range(14, 27))
"""Bytes that no text has."""
_ERROR_FIELDS = frozenset({"error", "errors", "code"})
"""Of JSON between events, one of which an error has."""
_FIELDS = (b":", b"data:", b"event:", b"id:", b"retry:")
_FIRST_CHARS = 120


class DecodedStream(msgspec.Struct):
    """The content of one stream.

    Attributes:
        deltas: arrival in nanoseconds and content of each chunk with tokens.
        empty_chunk_ns: arrival of each chunk without a token.
        usage: token counts of the engine, each the last that it stated.
        usage_ns: arrival of the last ones.
        stated: number of deltas and output tokens so far, at each event with a count of output tokens.
        is_done: whether the mark behind the last event arrived.
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
    stated: list[tuple[int, int]] = []
    is_done: bool = False
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


class _Identified(msgspec.Struct):
    id: str | None = None


def decode_stream(stream: StreamRecord, dialect: Dialect, tokenizer: Tokenizer | None) -> RequestRecord:
    """Decode one exchange.

    Args:
        stream: its raw log.
        dialect: of the engine.
        tokenizer: the model's, for engines that send neither ids nor one token per chunk.

    Returns:
        the record. Its outcome is the first that applies: an HTTP status other than 200, a fault in the stream, a
        failure of the transport, a missing finish reason (if the format has one), no token; else ok.
    """
    refused = None
    if not is_success(stream.status):
        decoded = DecodedStream()
        body = b"".join(stream.reads)
        refused = _refusal(dialect, stream.status or 0, body)
        if stream.detail and 300 <= (stream.status or 0) < 400:
            refused = f"HTTP {stream.status}: redirects to {clip(stream.detail.encode())}"
    else:
        decoded = read_stream(stream, dialect)
        if decoded.last_event_ns is None and stream.end is StreamEnd.COMPLETE and stream.is_streamed:
            decoded.fault = _no_stream(stream, dialect)
    outcome, error = _outcome(stream, decoded, refused, by_closing=dialect.ends_by_closing)
    usage = decoded.usage
    pieces = [delta for _, delta in decoded.deltas]
    own = _own_counts(decoded, stream.requested_output_tokens) if stream.is_streamed else None
    output_tokens = streamed_tokens(usage, pieces) if own is None else sum(own)
    if stream.is_streamed:
        deltas = _counted(decoded, own) if own or output_tokens == usage.output_tokens else decoded.deltas
        counts, source = token_counts(
            deltas, output_tokens, tokenizer, stream.requested_output_tokens, hides_reasoning=usage.hides_reasoning
        )
    else:
        counts, source = counts_of_whole(pieces, output_tokens, tokenizer)
    return RequestRecord(
        **{name: getattr(stream, name) for name in Exchange.__struct_fields__},
        outcome=outcome,
        first_byte_ns=stream.read_ns[0] if stream.read_ns else None,
        chunk_ns=[t_ns for t_ns, _ in decoded.deltas],
        chunk_tokens=counts,
        chunk_kinds=_kinds(pieces),
        textless_chunks=[i for i, (_, delta) in enumerate(decoded.deltas) if not delta.text],
        empty_chunk_ns=decoded.empty_chunk_ns,
        usage_ns=decoded.usage_ns,
        usage_in_choice=usage.in_choice,
        last_event_ns=decoded.last_event_ns,
        end=stream.end,
        token_source=source,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=output_tokens if output_tokens is not None else (sum(counts) or None),
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        hidden_tokens=hidden_tokens(usage, pieces),
        image_tokens=usage.image_tokens,
        finish_reason=decoded.finish,
        is_right=_is_right(stream, decoded) if outcome is Outcome.OK else None,
        error=masked(error) if error else None,
        answer_id=decoded.answer_id,
        text="".join(delta.text for _, delta in decoded.deltas),
    )


def is_success(status: int | None) -> bool:
    """Whether the status of a response, if there was one, says that the request was taken."""
    return status is None or HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


def read_stream(stream: Reads, dialect: Dialect) -> DecodedStream:
    """Decode the events of one exchange; each arrived with the read that completed it."""
    decoded = DecodedStream()
    if not stream.is_streamed:
        _read_whole(decoded, stream)
        return decoded
    parser, reader = SseParser(), dialect.reader()
    for t_ns, read in zip(stream.read_ns, stream.reads, strict=True):
        payloads = parser.feed(read)
        for data in payloads:
            _read_payload(decoded, t_ns, reader, data)
        if payloads and decoded.last_event_ns is None:
            decoded.answer_id = _answer_id(payloads[0])
        if payloads:
            decoded.last_event_ns = t_ns
    for data in parser.rest():
        if data.startswith(DONE) or _is_object(data):  # whole, though no blank line ends it
            decoded.last_event_ns = stream.read_ns[-1]
            _read_payload(decoded, decoded.last_event_ns, reader, data)
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


def _take_stray(decoded: DecodedStream, stray: bytes) -> None:
    """Keep what stood between the events, which may be the error of a server or proxy."""
    try:
        document = msgspec.json.decode(stray, type=dict[str, Any]) if stray else {}
    except UNREADABLE:
        document = {}
    error = error_in(document) if document.keys() & _ERROR_FIELDS else None
    decoded.fault, decoded.stray = decoded.fault or error, clip(stray, _FIRST_CHARS)


def _read_payload(decoded: DecodedStream, t_ns: int, reader: EventReader, data: bytes) -> None:
    """Add the events of one payload."""
    decoded.is_done = decoded.is_done or data.startswith(DONE)
    events = _events(reader, data)
    for event in events:
        _add(decoded, t_ns, event)
    if any(isinstance(event, Finish) for event in events) and not any(isinstance(e, TokenDelta) for e in events):
        decoded.is_continued = False
    if isinstance(data, ErrorData):
        decoded.fault = decoded.fault or f"the server reports an error: {clip(data)}"


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


def _read_whole(decoded: DecodedStream, stream: Reads) -> None:
    """Decode an answer that is one document, which arrived with its last read."""
    body, end_ns = b"".join(stream.reads), stream.read_ns[-1] if stream.read_ns else 0
    if not body:
        return
    if _is_compressed(body):
        decoded.fault = _COMPRESSED
        return
    for event in whole_answer(body, stream.passages):
        _add(decoded, end_ns, event)
    decoded.last_event_ns, decoded.answer_id = end_ns, _answer_id(body)


def _is_right(stream: StreamRecord, decoded: DecodedStream) -> bool | None:
    """Whether the answer is right; None if it is not scored, or began before the load, so that only a part came."""
    if stream.check is None or stream.part < 1:
        return None
    said = {kind: [delta.text for _, delta in decoded.deltas if delta.kind is kind] for kind in TokenKind}
    answer = Answer("".join(said[TokenKind.TEXT]), said[TokenKind.TOOL], decoded.finish or "")
    return is_right(Expected(Check(stream.check), stream.expected or ""), answer)


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


def _kinds(deltas: Iterable[TokenDelta]) -> str:
    kinds = "".join(_LETTERS[delta.kind] for delta in deltas)
    return kinds if kinds.strip("t") else ""


def _events(reader: EventReader, data: bytes) -> list[Event]:
    """The events of one payload; a dialect of another package that raises fails this answer, not the trial."""
    try:
        return list(reader.events(data))
    except Exception as error:  # noqa: BLE001
        name = type(reader).__qualname__
        return [StreamFault(f"{name}.events failed with {type(error).__name__}: {error}; the event: {clip(data)}")]


def _refusal(dialect: Dialect, status: int, body: bytes) -> str:
    """The error of a response; as the OpenAI format has it where a dialect of another package raises."""
    try:
        return dialect.refusal(status, body)
    except Exception:  # noqa: BLE001
        return refusal(status, body)


def _answer_id(payload: bytes) -> str | None:
    try:
        return msgspec.json.decode(payload, type=_Identified).id
    except msgspec.MsgspecError:
        return None


def _add(decoded: DecodedStream, t_ns: int, event: Event) -> None:
    if isinstance(event, Usage | TokenDelta) and (problem := impossible_count(event)):
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
                decoded.stated.append((len(decoded.deltas), decoded.usage.output_tokens))
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
    are_totals = not (newer.in_choice or earlier.in_choice) and decoded.stated[-1:] == [(count, earlier.output_tokens)]
    if are_totals and (newer.output_tokens or 0) < min(earlier.output_tokens or 0, count):
        newer = msgspec.structs.replace(newer, output_tokens=None)  # a part of the answer, of another server behind it
    missing = {name: getattr(earlier, name) for name in Usage.__struct_fields__ if getattr(newer, name) is None}
    return msgspec.structs.replace(newer, **missing)


def _counted(decoded: DecodedStream, own: Sequence[int] | None) -> list[tuple[int, TokenDelta]]:
    """The deltas, each with its token count if usage stood behind every one of them; ``own``: see `_own_counts`."""
    counts = own or _risen(decoded)
    if counts is None:
        return decoded.deltas
    return [
        (t_ns, msgspec.structs.replace(delta, tokens=count))
        for (t_ns, delta), count in zip(decoded.deltas, counts, strict=True)
    ]


def _risen(decoded: DecodedStream) -> list[int] | None:
    """By how much a total that stood behind every delta rose with each; None if one is missing, or it did not rise."""
    deltas, totals = decoded.deltas, dict(decoded.stated)
    so_far = [totals.get(number) for number in range(1, len(deltas) + 1)]
    known = [total for total in so_far if total is not None]
    added = [after - before for before, after in pairwise([0, *known])]
    return None if len(deltas) < 2 or len(known) < len(deltas) or min(added) < 1 else added


def _own_counts(decoded: DecodedStream, requested: int | None) -> list[int] | None:
    """The tokens of each delta, where the usage behind each states only its own; None where it states totals.

    Totals rise, anew in each of several choices, or are the whole answer's from the beginning. So constant counts must
    be 1 or give the requested length, unless a last total behind all deltas is their sum, which it must be.
    """
    deltas, stated = decoded.deltas, decoded.stated
    if len(deltas) < _REPEATING or len(stated) < len(deltas):
        return None
    first, last = dict(reversed(stated)), stated[-1][1]
    counts = [first.get(number, 0) for number in range(1, len(deltas) + 1)]
    steps = list(pairwise(counts))
    rises = counts[-1] > counts[0] and all(before <= after for before, after in steps)
    rises = rises or (max(counts) > _REPEATING // 2 and all(after in {before + 1, 1} for before, after in steps))
    is_constant = min(counts) == max(counts) > 1
    has_total = len(stated) > len(deltas)
    is_contradicted = has_total and last != sum(counts)
    is_doubtful = is_constant and not has_total and sum(counts) != requested
    if min(counts) < 1 or rises or is_contradicted or is_doubtful:
        return None
    return counts


def _no_stream(stream: StreamRecord, dialect: Dialect) -> str | None:
    """What an answer with status 200 is instead of a stream of events; None if it is one, or empty."""
    body = b"".join(stream.reads)
    if not body or body.lstrip().startswith(_FIELDS):
        return None
    if _is_compressed(body):
        return _COMPRESSED
    first, *others = body.strip().splitlines() or [b""]
    if others and _is_object(first) and _is_object(others[-1]):
        return (
            "the answer is lines of JSON, as of Ollama's own API, and no stream of events; give the address of the "
            "server's OpenAI API, which ends in /v1"
        )
    if b'"choices"' in body and _is_object(body):
        return "the server answers in one document although a stream was asked for; set stream = false (--no-stream)"
    if _is_object(body):
        return _refusal(dialect, 200, body).removeprefix("HTTP 200: ")
    return f"the answer is not a stream of events; it begins with: {clip(body, _FIRST_CHARS)}"


def _is_compressed(body: bytes) -> bool:
    """Whether an answer begins as compressed data does; Brotli's has no mark, but bytes that no text has."""
    return body.startswith(_COMPRESSED_STARTS) or not _CONTROLS.isdisjoint(body[:_FIRST_CHARS])


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except UNREADABLE:
        return False


def _outcome(
    stream: StreamRecord, decoded: DecodedStream, refused: str | None, *, by_closing: bool
) -> tuple[Outcome, str | None]:
    if refused is not None:
        return Outcome.HTTP_ERROR, refused
    if decoded.fault is not None and stream.end is not StreamEnd.TOO_LARGE:
        return Outcome.STREAM_ERROR, decoded.fault
    is_reset_behind = stream.end is StreamEnd.RESET and decoded.is_told_whole
    if stream.end is not StreamEnd.COMPLETE and not is_reset_behind:
        return _TRANSPORT_OUTCOMES[stream.end], stream.detail
    if not decoded.is_whole and not by_closing:
        missing = "a finish reason" if decoded.last_event_ns is not None or not stream.is_streamed else "any event"
        behind = f", behind lines that are no event: {decoded.stray}" if decoded.stray else ""
        status = f"HTTP {stream.status}: " if stream.status not in {None, HTTPStatus.OK} else ""
        what = "stream" if stream.is_streamed else "answer"
        return Outcome.TRUNCATED, f"{status}the {what} ended without {missing}{behind}"
    if not decoded.deltas:
        unread = f"; {decoded.unread}, which its events carry, is not read" if decoded.unread else ""
        return Outcome.EMPTY, f"the answer has no token{unread}"
    return Outcome.OK, None
