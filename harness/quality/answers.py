"""One answer as tokens: what the engine was asked and what it said, or why that cannot be compared."""

import msgspec

from engines.dialects import Dialect, TokenKind, holds_to_schema
from harness.client.decode import DecodedStream, read_stream
from harness.quality.scorer import Line
from results.quality import QualitySample
from results.records import RequestRecord, StreamRecord
from workloads import Tokenizer, Turn, prompt_reader

_HALF_A_CHARACTER = "\ufffd"


class NotComparable(Exception):
    """An answer that says nothing about the engine; the message says why."""


class Candidate(msgspec.Struct, frozen=True):
    """An answer that may be compared.

    Attributes:
        request: its record.
        turn: what was asked.
        stream: the raw log of it.
    """

    request: RequestRecord
    turn: Turn
    stream: StreamRecord


def prepared(candidate: Candidate, dialect: Dialect, tokenizer: Tokenizer) -> tuple[QualitySample, Line | None]:
    """What is known of an answer before it is scored, and what the scorer needs; None where it cannot be compared."""
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
        raise NotComparable("the answer was held to a JSON schema, which the reference does not know")
    ids = list(prompt_reader(tokenizer).ids(turn))
    counted = candidate.request.prompt_tokens
    if counted is not None and counted != len(ids):
        raise NotComparable(
            f"the engine counted {counted:,} prompt tokens where the model's tokenizer makes {len(ids):,}"
        )
    return ids


def _output_ids(answer: DecodedStream, tokenizer: Tokenizer) -> tuple[list[int], bool]:
    """The engine's own ids, else those that the tokenizer makes of its text; whether it was the latter."""
    deltas = [delta for _, delta in answer.deltas]
    if not deltas:
        raise NotComparable("the answer holds no token")
    if all(delta.token_ids for delta in deltas):
        return [i for delta in deltas for i in delta.token_ids or ()], False
    kinds = {delta.kind for delta in deltas if delta.text} - {TokenKind.TEXT}
    if kinds:
        raise NotComparable(f"the engine sent no token ids, and {kinds.pop().value} apart from its text")
    text = "".join(delta.text for delta in deltas)
    ids = tokenizer.encode(text.rstrip(_HALF_A_CHARACTER))
    counted = answer.usage.output_tokens
    allowed = {None, len(ids), len(ids) + (answer.finish == "stop")}  # the end of a sequence has no text
    if not ids or (counted not in allowed and not text.endswith(_HALF_A_CHARACTER)):
        raise NotComparable(
            f"no token ids came, and the text makes {len(ids):,} tokens where the engine counted {counted}"
        )
    return ids, True


def _logprobs(answer: DecodedStream, tokens: int) -> list[float] | None:
    """The engine's own, where it gave one for each token."""
    found = [value for _, delta in answer.deltas for value in delta.logprobs or ()]
    return found if found and len(found) == tokens else None
