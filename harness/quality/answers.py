"""One answer as prompt and output tokens, or the reason why it cannot be compared."""

import msgspec

from bakeoff.engines.dialects import Dialect, TokenKind, holds_to_schema
from bakeoff.harness.client.wire.stream_content import DecodedStream, read_stream
from bakeoff.harness.quality.scorer import Line
from bakeoff.results.metrics.quality import QualitySample
from bakeoff.results.records import RequestRecord, StreamRecord
from bakeoff.workloads import Tokenizer, Turn, prompt_reader

_INCOMPLETE_CHARACTER = "\ufffd"


class NotComparable(Exception):
    """The answer cannot be compared with the reference; the message says why."""


class Candidate(msgspec.Struct, frozen=True):
    """An answer to compare.

    Attributes:
        request: its record.
        turn: its prompt.
        stream: its raw log.
    """

    request: RequestRecord
    turn: Turn
    stream: StreamRecord


def prepared(candidate: Candidate, dialect: Dialect, tokenizer: Tokenizer) -> tuple[QualitySample, Line | None]:
    """The sample without its score, and the scorer's input; None instead of the input if it cannot be compared."""
    request = candidate.request
    sample = QualitySample(index=request.index, session=request.session, turn=request.turn)
    try:
        prompt_ids = _prompt_ids(candidate, dialect, tokenizer)
        answer = read_stream(candidate.stream, dialect)
        output_ids, retokenised = _output_ids(answer, tokenizer)
    except NotComparable as error:
        return msgspec.structs.replace(sample, why=str(error)), None
    line = Line(str(request.index), prompt_ids, output_ids, _logprobs(answer, len(output_ids)))
    return msgspec.structs.replace(sample, prompt_tokens=len(prompt_ids), retokenised=retokenised), line


def _prompt_ids(candidate: Candidate, dialect: Dialect, tokenizer: Tokenizer) -> list[int]:
    turn = candidate.turn
    if turn.json_schema is not None and holds_to_schema(dialect.request, turn):
        raise NotComparable("the answer was constrained by a JSON schema, which the reference does not support")
    ids = list(prompt_reader(tokenizer).ids(turn))
    counted = candidate.request.prompt_tokens
    if counted is not None and counted != len(ids):
        raise NotComparable(f"the engine counted {counted:,} prompt tokens, the model's tokenizer {len(ids):,}")
    return ids


def _output_ids(answer: DecodedStream, tokenizer: Tokenizer) -> tuple[list[int], bool]:
    """The engine's token ids, else those of its text; and whether they are those of its text."""
    deltas = [delta for _, delta in answer.deltas]
    if not deltas:
        raise NotComparable("the answer has no token")
    if all(delta.token_ids for delta in deltas):
        return [i for delta in deltas for i in delta.token_ids or ()], False
    kinds = {delta.kind for delta in deltas if delta.text} - {TokenKind.TEXT}
    if kinds:
        raise NotComparable(f"the engine sent no token ids, and sent {kinds.pop().value} separately from its text")
    text = "".join(delta.text for delta in deltas)
    ids = tokenizer.encode(text.rstrip(_INCOMPLETE_CHARACTER))
    counted = answer.usage.output_tokens
    allowed = {None, len(ids), len(ids) + (answer.finish == "stop")}  # an end-of-sequence token has no text
    if not ids or (counted not in allowed and not text.endswith(_INCOMPLETE_CHARACTER)):
        raise NotComparable(f"the engine sent no token ids and counted {counted} tokens, but its text has {len(ids):,}")
    return ids, True


def _logprobs(answer: DecodedStream, tokens: int) -> list[float] | None:
    """The engine's log-probabilities, if there is one for each token."""
    values = [value for _, delta in answer.deltas for value in delta.logprobs or ()]
    return values if values and len(values) == tokens else None
