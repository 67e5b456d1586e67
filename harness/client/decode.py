"""Decodes raw reads into request records: pure functions, run after the trial."""

from typing import Protocol

import msgspec

from bakeoff.engines.dialects import (
    Dialect,
    EmptyChunk,
    Event,
    Finish,
    SseParser,
    StreamFault,
    TokenDelta,
    Usage,
)
from bakeoff.engines.secrets import masked
from bakeoff.harness.client.plausibility import impossible_count
from bakeoff.harness.client.token_counts import token_counts
from bakeoff.results.records import Exchange, Outcome, RequestRecord, StreamEnd, StreamRecord
from bakeoff.workloads import Tokenizer

_TRANSPORT_OUTCOMES = {
    StreamEnd.REFUSED: Outcome.REFUSED,
    StreamEnd.TIMEOUT: Outcome.TIMEOUT,
    StreamEnd.CANCELLED: Outcome.CANCELLED,
    StreamEnd.RESET: Outcome.STREAM_ERROR,
    StreamEnd.TOO_LARGE: Outcome.TOO_LARGE,
}


class DecodedStream(msgspec.Struct):
    """The content of one stream.

    Attributes:
        deltas: arrival in nanoseconds and content of each chunk with tokens.
        empty_chunk_ns: arrival of each chunk without a token.
        usage: last token counts of the engine.
        usage_ns: their arrival.
        last_event_ns: arrival of the last event.
        finish: finish reason of the engine.
        fault: first failure that the engine reported.
        answer_id: ``id`` of the first event.
    """

    deltas: list[tuple[int, TokenDelta]] = []
    empty_chunk_ns: list[int] = []
    usage: Usage = Usage()
    usage_ns: int | None = None
    last_event_ns: int | None = None
    finish: str | None = None
    fault: str | None = None
    answer_id: str | None = None


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
    refusal = None
    if stream.status not in {None, 200}:
        decoded = DecodedStream()
        body = b"".join(stream.reads)
        refusal = dialect.refusal(stream.status or 0, body)
    else:
        decoded = read_stream(stream, dialect)
    outcome, error = _outcome(stream, decoded, refusal, by_closing=dialect.ends_by_closing)
    counts, source = token_counts(
        decoded.deltas, decoded.usage.output_tokens, tokenizer, stream.requested_output_tokens
    )
    usage = decoded.usage
    return RequestRecord(
        **{name: getattr(stream, name) for name in Exchange.__struct_fields__},
        outcome=outcome,
        first_byte_ns=stream.read_ns[0] if stream.read_ns else None,
        chunk_ns=[t_ns for t_ns, _ in decoded.deltas],
        chunk_tokens=counts,
        textless_chunks=[i for i, (_, delta) in enumerate(decoded.deltas) if not delta.text],
        empty_chunk_ns=decoded.empty_chunk_ns,
        usage_ns=decoded.usage_ns,
        usage_in_choice=usage.in_choice,
        last_event_ns=decoded.last_event_ns,
        end=stream.end,
        token_source=source,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens if usage.output_tokens is not None else (sum(counts) or None),
        cached_tokens=usage.cached_tokens,
        finish_reason=decoded.finish,
        error=masked(error) if error else None,
        answer_id=decoded.answer_id,
        text="".join(delta.text for _, delta in decoded.deltas),
    )


def read_stream(stream: Reads, dialect: Dialect) -> DecodedStream:
    """Decode the events of one exchange; each arrived with the read that completed it."""
    decoded = DecodedStream()
    parser, reader = SseParser(), dialect.reader()
    for t_ns, read in zip(stream.read_ns, stream.reads, strict=True):
        payloads = parser.feed(read)
        for data in payloads:
            for event in reader.events(data):
                _add(decoded, t_ns, event)
        if payloads and decoded.last_event_ns is None:
            decoded.answer_id = _answer_id(payloads[0])
        if payloads:
            decoded.last_event_ns = t_ns
    return decoded


def is_answer(stream: Reads, dialect: Dialect) -> bool:
    """Whether the reads of a complete exchange with status 200 are a whole answer, without an error and with tokens."""
    decoded = read_stream(stream, dialect)
    is_whole = decoded.finish is not None or dialect.ends_by_closing
    return is_whole and decoded.fault is None and bool(decoded.deltas)


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
        case EmptyChunk():
            decoded.empty_chunk_ns.append(t_ns)
        case Usage():
            decoded.usage, decoded.usage_ns = event, t_ns
        case Finish():
            decoded.finish = event.reason
        case StreamFault():
            decoded.fault = decoded.fault or event.message


def _outcome(
    stream: StreamRecord, decoded: DecodedStream, refusal: str | None, *, by_closing: bool
) -> tuple[Outcome, str | None]:
    if refusal is not None:
        return Outcome.HTTP_ERROR, refusal
    if decoded.fault is not None and stream.end is not StreamEnd.TOO_LARGE:
        return Outcome.STREAM_ERROR, decoded.fault
    if stream.end is not StreamEnd.COMPLETE:
        return _TRANSPORT_OUTCOMES[stream.end], stream.detail
    if decoded.finish is None and not by_closing:
        return Outcome.TRUNCATED, "the stream ended without a finish reason"
    if not decoded.deltas:
        return Outcome.EMPTY, "the answer has no token"
    return Outcome.OK, None
