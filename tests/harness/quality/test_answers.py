"""Which answers are compared, and how one is read as tokens, or why it cannot be."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bakeoff.engines.dialects import Dialect, OpenAiDialect, TransformersDialect
from bakeoff.harness.quality import asks_logprobs
from bakeoff.harness.quality.answers import Candidate, prepared
from bakeoff.harness.quality.check import ranked
from bakeoff.results.records import Outcome, Phase, RequestRecord
from bakeoff.workloads import Message, Tokenizer, Turn
from tests.harness.samples import stream
from tests.workloads.small_tokenizers import checkpoint

TURN = Turn(4, 3, messages=(Message("user", "a note"),))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("tokenizer"), bare=True, merges=800))


def looked_at(
    dialect: Dialect, tokenizer: Tokenizer, reads: Sequence[bytes], turn: Turn = TURN
) -> tuple[str | None, list[int] | None]:
    """Why an answer is not compared, or its tokens."""
    record = stream([(i, read) for i, read in enumerate(reads)])
    request = request_of(0)
    sample, line = prepared(Candidate(request, turn, record), dialect, tokenizer)
    return sample.why, line.output_ids if line else None


def sse(payload: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def request_of(index: int, session: str = "s", turn: int = 0) -> RequestRecord:
    return RequestRecord(
        index=index, phase=Phase.MEASURED, session=session, turn=turn, planned_ns=0, ended_ns=1, outcome=Outcome.OK
    )


def delta(**parts: Any) -> bytes:
    return sse({"choices": [{"index": 0, "delta": parts}]})


def usage(tokens: int, reason: str = "length") -> bytes:
    return sse({"choices": [{"index": 0, "finish_reason": reason}], "usage": {"completion_tokens": tokens}})


def test_answers_that_cannot_be_read_as_tokens_say_why(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the water")
    text = delta(content="the water")
    assert looked_at(OpenAiDialect(), tokenizer, [text, usage(len(ids))]) == (None, ids)
    assert looked_at(OpenAiDialect(), tokenizer, [text]) == (None, ids)
    assert looked_at(OpenAiDialect(), tokenizer, [text, usage(len(ids) + 1, "stop")]) == (None, ids)
    assert looked_at(OpenAiDialect(), tokenizer, [delta(content="the water\ufffd"), usage(len(ids) + 1)]) == (None, ids)
    why = f"the engine sent no token ids and counted {len(ids) + 1} tokens, but its text has {len(ids)}"
    assert looked_at(OpenAiDialect(), tokenizer, [text, usage(len(ids) + 1)]) == (why, None)
    why = "the engine sent no token ids, and sent reasoning separately from its text"
    assert looked_at(OpenAiDialect(), tokenizer, [delta(reasoning_content="so"), text]) == (why, None)
    assert looked_at(OpenAiDialect(), tokenizer, [usage(0)]) == ("the answer has no token", None)


def test_an_answer_that_was_held_to_a_schema_is_not_compared_and_one_that_was_not_is(tokenizer: Tokenizer) -> None:
    turn = msgspec.structs.replace(TURN, json_schema='{"type":"object"}')
    reads = [sse({"choices": [{"index": 0, "delta": {"content": "{"}, "token_ids": [5]}]})]
    held, _ = looked_at(OpenAiDialect(), tokenizer, reads, turn)
    assert held == "the answer was constrained by a JSON schema, which the reference does not support"
    assert looked_at(TransformersDialect(), tokenizer, reads, turn) == (None, [5])


def test_the_choice_depends_on_seed_session_and_turn_alone() -> None:
    requests = [request_of(i, session=f"s{i // 2}", turn=i % 2) for i in range(40)]
    chosen = ranked("1", requests)
    assert ranked("1", reversed(requests)) == chosen
    assert ranked("2", requests) != chosen
    assert sorted(request.index for request in chosen) == list(range(40))
    assert len({request.index // 10 for request in chosen[:12]}) == 4, "from the whole trial"


def test_log_probabilities_are_asked_of_few_requests_however_far_the_plan_goes() -> None:
    asks = asks_logprobs("seed", 4)
    positions = [position for position in range(1023) if asks(position)]
    assert len(positions) == 10, "one in each of 1, 2, 4 … 512 requests"
    assert [(position + 1).bit_length() for position in positions] == list(range(1, 11))
    assert [p for p in range(1023) if asks_logprobs("other", 4)(p)] != positions
    assert not any(asks_logprobs("seed", 0)(position) for position in range(100))
    many = [position for position in range(1023) if asks_logprobs("seed", 16)(position)]
    assert 16 <= len(many) <= 40
    assert set(positions) <= set(many)
