"""From raw reads to a request record: a pure function, run when the trial is over."""

import msgspec

from engines.dialects import (
    Dialect,
    EmptyChunk,
    Event,
    Finish,
    SseParser,
    StreamFault,
    TokenDelta,
    Usage,
)
from engines.secrets import masked
from harness.client.token_counts import token_counts
from results.records import Exchange, Outcome, RequestRecord, StreamEnd, StreamRecord
from workloads import Tokenizer

_TRANSPORT_OUTCOMES = {
    StreamEnd.REFUSED: Outcome.REFUSED,
    StreamEnd.TIMEOUT: Outcome.TIMEOUT,
    StreamEnd.CANCELLED: Outcome.CANCELLED,
    StreamEnd.RESET: Outcome.STREAM_ERROR,
}


class Answer(msgspec.Struct):
    """What the events of one stream add up to.

    Attributes:
        deltas: arrival in nanoseconds and content of each token-bearing chunk.
        empty_chunk_ns: when each chunk without a token arrived.
        usage: the engine's last counts.
        usage_ns: when they arrived.
        last_event_ns: when the last event arrived.
        finish: the engine's reason.
        fault: the first failure that it reported.
    """

    deltas: list[tuple[int, TokenDelta]] = []
    empty_chunk_ns: list[int] = []
    usage: Usage = Usage()
    usage_ns: int | None = None
    last_event_ns: int | None = None
    finish: str | None = None
    fault: str | None = None


def decode_stream(stream: StreamRecord, dialect: Dialect, tokenizer: Tokenizer | None) -> RequestRecord:
    """Decode one exchange.

    Args:
        stream: the raw log of it.
        dialect: of the engine that answered.
        tokenizer: the model's, for engines that send neither ids nor one token per chunk.

    Returns:
        the record; its outcome is the first class that applies: an HTTP status other than 200, a fault in the stream,
        what the transport saw, a missing finish reason (where the format has one), not one token, else ok.
    """
    refusal = None
    if stream.status not in {None, 200}:
        answer = Answer()
        body = b"".join(stream.reads)
        refusal = dialect.refusal(stream.status or 0, body)
    else:
        answer = read_answer(stream, dialect)
    outcome, error = _outcome(stream, answer, refusal, by_closing=dialect.ends_by_closing)
    counts, source = token_counts(answer.deltas, answer.usage.output_tokens, tokenizer)
    usage = answer.usage
    return RequestRecord(
        **{name: getattr(stream, name) for name in Exchange.__struct_fields__},
        outcome=outcome,
        first_byte_ns=stream.read_ns[0] if stream.read_ns else None,
        chunk_ns=[t_ns for t_ns, _ in answer.deltas],
        chunk_tokens=counts,
        silent_chunks=[i for i, (_, delta) in enumerate(answer.deltas) if not delta.text],
        empty_chunk_ns=answer.empty_chunk_ns,
        usage_ns=answer.usage_ns,
        usage_in_choice=usage.in_choice,
        last_event_ns=answer.last_event_ns,
        end=stream.end,
        token_source=source,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens if usage.output_tokens is not None else (sum(counts) or None),
        cached_tokens=usage.cached_tokens,
        finish_reason=answer.finish,
        error=masked(error) if error else None,
        text="".join(delta.text for _, delta in answer.deltas),
    )


def read_answer(stream: StreamRecord, dialect: Dialect) -> Answer:
    """Every event of one exchange with the time of the read that completed it, summed up."""
    answer = Answer()
    parser, reader = SseParser(), dialect.reader()
    for t_ns, read in zip(stream.read_ns, stream.reads, strict=True):
        payloads = parser.feed(read)
        for data in payloads:
            for event in reader.events(data):
                _take(answer, t_ns, event)
        if payloads:
            answer.last_event_ns = t_ns
    return answer


def _take(answer: Answer, t_ns: int, event: Event) -> None:
    match event:
        case TokenDelta():
            answer.deltas.append((t_ns, event))
        case EmptyChunk():
            answer.empty_chunk_ns.append(t_ns)
        case Usage():
            answer.usage, answer.usage_ns = event, t_ns
        case Finish():
            answer.finish = event.reason
        case StreamFault():
            answer.fault = answer.fault or event.message


def _outcome(
    stream: StreamRecord, answer: Answer, refusal: str | None, *, by_closing: bool
) -> tuple[Outcome, str | None]:
    if refusal is not None:
        return Outcome.HTTP_ERROR, refusal
    if answer.fault is not None:
        return Outcome.STREAM_ERROR, answer.fault
    if stream.end is not StreamEnd.COMPLETE:
        return _TRANSPORT_OUTCOMES[stream.end], stream.detail
    if answer.finish is None and not by_closing:
        return Outcome.TRUNCATED, "the stream ended without a finish reason"
    if not answer.deltas:
        return Outcome.EMPTY, "the answer has no token"
    return Outcome.OK, None
