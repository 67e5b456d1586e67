"""Decodes raw reads into request records: pure functions, run after the trial."""

import string
from collections.abc import Iterable, Sequence
from http import HTTPStatus

from bakeoff.engines.dialects import Dialect, TokenDelta, TokenKind
from bakeoff.engines.dialects.failures import clip, refusal
from bakeoff.engines.secrets import masked
from bakeoff.harness.client.decode.ledger import ledger_of, ledger_of_whole
from bakeoff.harness.client.decode.scoring import Answer, is_right
from bakeoff.harness.client.wire.stream_content import (
    COMPRESSED,
    FIRST_CHARS,
    DecodedStream,
    is_compressed,
    is_object,
    is_success,
    read_stream,
)
from bakeoff.results.records import NOT_FOUND, Exchange, Outcome, RequestRecord, StreamEnd, StreamRecord
from bakeoff.workloads import Tokenizer
from bakeoff.workloads.types import Check, Expected

_TRANSPORT_OUTCOMES = {
    StreamEnd.REFUSED: Outcome.REFUSED,
    StreamEnd.TIMEOUT: Outcome.TIMEOUT,
    StreamEnd.CANCELLED: Outcome.CANCELLED,
    StreamEnd.RESET: Outcome.STREAM_ERROR,
    StreamEnd.TOO_LARGE: Outcome.TOO_LARGE,
}
_LETTERS = {TokenKind.TEXT: "t", TokenKind.REASONING: "r", TokenKind.TOOL: "c"}
_BLANK = string.whitespace + "\u00a0\u200b\u200c\u200d\u2060\ufeff\u3000"
"""Characters that nobody sees."""
_FIELDS = (b":", b"data:", b"event:", b"id:", b"retry:")


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
        elif stream.detail and stream.status in NOT_FOUND:
            refused += f" (asked for {stream.detail})"
    else:
        decoded = read_stream(stream, dialect)
        if decoded.last_event_ns is None and stream.end is StreamEnd.COMPLETE and stream.is_streamed:
            decoded.fault = _no_stream(stream, dialect)
    outcome, error = _outcome(stream, decoded, refused, by_closing=dialect.ends_by_closing)
    usage = decoded.usage
    ledger = (ledger_of if stream.is_streamed else ledger_of_whole)(decoded, tokenizer, stream.requested_output_tokens)
    pieces = [delta for _, delta in ledger.deltas]
    stamped = {t_ns for t_ns, delta in ledger.deltas if not delta.text}
    return RequestRecord(
        **{name: getattr(stream, name) for name in Exchange.__struct_fields__},
        outcome=outcome,
        first_byte_ns=stream.read_ns[0] if stream.read_ns else None,
        chunk_ns=[t_ns for t_ns, _ in ledger.deltas],
        chunk_tokens=ledger.counts,
        chunk_kinds=_kinds(pieces),
        textless_chunks=[i for i, delta in enumerate(pieces) if not delta.text],
        empty_chunk_ns=[t_ns for t_ns in decoded.empty_chunk_ns if t_ns not in stamped],
        usage_ns=decoded.usage_ns,
        usage_in_choice=usage.in_choice,
        last_event_ns=decoded.last_event_ns,
        end=stream.end,
        token_source=ledger.source,
        disbelieved=ledger.disbelieved,
        blank_chunks=_blank_chunks(pieces),
        behind_end=decoded.behind_end,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=ledger.stated if ledger.stated is not None else (sum(ledger.counts) or None),
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        hidden_tokens=ledger.hidden,
        image_tokens=usage.image_tokens,
        finish_reason=decoded.finish,
        is_right=_is_right(stream, decoded) if outcome is Outcome.OK else None,
        error=masked(error) if error else None,
        answer_id=decoded.answer_id,
        text=masked("".join(delta.text for _, delta in decoded.deltas)),  # a key may come in pieces
    )


def _blank_chunks(pieces: Sequence[TokenDelta]) -> int:
    """Chunks before the first one with a visible character; 0 if none has one."""
    return next((place for place, delta in enumerate(pieces) if delta.text.strip(_BLANK)), 0)


def _is_right(stream: StreamRecord, decoded: DecodedStream) -> bool | None:
    """Whether the answer is right; None if it is not scored, or began before the load, so that only a part came."""
    if stream.check is None or stream.part < 1:
        return None
    said = {kind: [delta.text for _, delta in decoded.deltas if delta.kind is kind] for kind in TokenKind}
    answer = Answer("".join(said[TokenKind.TEXT]), said[TokenKind.TOOL], decoded.finish or "")
    return is_right(Expected(Check(stream.check), stream.expected or ""), answer)


def _kinds(deltas: Iterable[TokenDelta]) -> str:
    kinds = "".join(_LETTERS[delta.kind] for delta in deltas)
    return kinds if kinds.strip("t") else ""


def _refusal(dialect: Dialect, status: int, body: bytes) -> str:
    """The error of a response; as the OpenAI format has it where a dialect of another package raises."""
    try:
        return dialect.refusal(status, body)
    except Exception:  # noqa: BLE001
        return refusal(status, body)


def _no_stream(stream: StreamRecord, dialect: Dialect) -> str | None:
    """What an answer with status 200 is instead of a stream of events; None if it is one, or empty."""
    body = b"".join(stream.reads)
    if not body or body.lstrip().startswith(_FIELDS):
        return None
    if is_compressed(body):
        return COMPRESSED
    first, *others = body.strip().splitlines() or [b""]
    if others and is_object(first) and is_object(others[-1]):
        return (
            "the answer is lines of JSON, as of Ollama's own API, and no stream of events; give the address of the "
            "server's OpenAI API, which ends in /v1"
        )
    if b'"choices"' in body and is_object(body):
        return "the server answers in one document although a stream was asked for; set stream = false (--no-stream)"
    if is_object(body):
        return _refusal(dialect, 200, body).removeprefix("HTTP 200: ")
    return f"the answer is not a stream of events; it begins with: {clip(body, FIRST_CHARS)}"


def _outcome(
    stream: StreamRecord, decoded: DecodedStream, refused: str | None, *, by_closing: bool
) -> tuple[Outcome, str | None]:
    if refused is not None:
        return Outcome.HTTP_ERROR, refused
    if decoded.fault is not None and stream.end is not StreamEnd.TOO_LARGE:
        return Outcome.STREAM_ERROR, decoded.fault
    is_whole_all_the_same = stream.end in {StreamEnd.RESET, StreamEnd.TIMEOUT} and decoded.is_told_whole
    if stream.end is not StreamEnd.COMPLETE and not is_whole_all_the_same:
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
