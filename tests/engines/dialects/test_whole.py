"""Answers that are one document, of every format."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import (
    AnthropicDialect,
    Dialect,
    Event,
    Finish,
    ResponsesDialect,
    StreamFault,
    TgiNativeDialect,
    TokenDelta,
    TokenKind,
    Usage,
    VllmDialect,
    whole_answer,
)
from bakeoff.engines.errors import BadOption
from bakeoff.engines.request_shape import RequestShape, ShapedDialect
from bakeoff.workloads import Message, Turn

CHAT = Turn(2, 5, messages=(Message("user", "a"),))
COMPLETION = Turn(2, 5, prompt="a")
OPENAI_USAGE = {"prompt_tokens": 3, "completion_tokens": 5}


def whole(document: Any) -> list[Event]:
    return whole_answer(json.dumps(document).encode())


def test_a_chat_has_reasoning_text_and_counts() -> None:
    message = {"role": "assistant", "reasoning_content": "hm", "content": "18"}
    events = whole({"choices": [{"message": message, "finish_reason": "stop"}], "usage": OPENAI_USAGE})
    assert events == [
        TokenDelta("hm", kind=TokenKind.REASONING), TokenDelta("18"), Finish("stop"), Usage(3, 5)
    ]  # fmt: skip


def test_other_formats_tell_themselves() -> None:
    assert whole({"choices": [{"text": "b", "finish_reason": "length"}]}) == [TokenDelta("b"), Finish("length")]
    items = [{"type": "reasoning", "summary": [{"text": "hm"}]}, {"type": "message", "content": [{"text": "b"}]}]
    usage = {"input_tokens": 3, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 2}}
    assert whole({"output": items, "status": "completed", "usage": usage}) == [
        TokenDelta("hm", kind=TokenKind.REASONING), TokenDelta("b"), Finish("completed"), Usage(3, 5, 2)
    ]  # fmt: skip
    blocks = [{"type": "text", "text": "b"}, {"type": "tool_use", "name": "f", "input": {}}]
    usage = {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 5}
    assert whole({"content": blocks, "stop_reason": "end_turn", "usage": usage}) == [
        TokenDelta("b"), TokenDelta("{}", kind=TokenKind.TOOL), Finish("end_turn"), Usage(3, 5, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [
        {"data": [{"embedding": [0.1, 2]}], "usage": {"prompt_tokens": 7, "total_tokens": 7}},
        {"data": [{"embedding": "AAAA"}], "usage": {"prompt_tokens": 7}},
        {"results": [{"index": 0, "relevance_score": 0.0}], "usage": {"total_tokens": 7}, "message": "success"},
    ],
)
def test_vectors_and_scores_are_an_arrival_without_tokens(document: Any) -> None:
    assert whole(document) == [Usage(7), TokenDelta(""), Finish("complete")]


@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": "no"}}, {"code": 50001, "msg": "no", "data": None}, {"data": []},
        {"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "error": {"message": "no"}}]},
        {"data": [{"embedding": []}]}, {"results": [{"index": 0}]}, {}, 3,
        {"object": "list", "data": [{"embedding": None}]},
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_fault(document: Any) -> None:
    (fault,) = whole(document)
    assert isinstance(fault, StreamFault)


def test_each_text_needs_a_row_of_its_own() -> None:
    rows = [{"index": i, "embedding": [0.5]} for i in range(2)]
    assert whole_answer(json.dumps({"data": rows}).encode(), 2)[-1] == Finish("complete")
    for short in (rows[:1], [rows[0], rows[0]]):
        (fault,) = whole_answer(json.dumps({"data": short}).encode(), 2)
        assert fault == StreamFault("the answer has 1 rows of its own for 2 texts")
    (fault,) = whole_answer(b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}', 2)
    assert isinstance(fault, StreamFault), "a chat's answer ranks nothing"


def test_a_stream_instead_of_a_document_is_named() -> None:
    (fault,) = whole_answer(b'data: {"choices": []}\n\n')
    assert isinstance(fault, StreamFault)
    assert "the server streams although a whole answer was asked for" in fault.message


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_random_bytes_raise_nothing(data: bytes) -> None:
    assert all(isinstance(event, Event) for event in whole_answer(data))


class TestRequests:
    @pytest.mark.parametrize("dialect", [VllmDialect(), ResponsesDialect(), AnthropicDialect()])
    def test_an_answer_that_is_not_streamed_is_asked_for(self, dialect: Dialect) -> None:
        request = ShapedDialect(dialect, RequestShape(stream=False)).request(CHAT, "m")
        body = json.loads(request.body)
        assert (body["stream"], "stream_options" in body, request.is_streamed) == (False, False, False)
        assert request.headers["accept"] == "application/json"

    def test_a_route_that_always_streams_is_named(self) -> None:
        with pytest.raises(BadOption, match="completions of the tgi-native format are always streamed"):
            ShapedDialect(TgiNativeDialect(), RequestShape(stream=False)).request(COMPLETION, "m")

    def test_texts_are_embedded_or_ranked(self) -> None:
        shaped = ShapedDialect(VllmDialect(), RequestShape(body={"dimensions": 64}))
        request = shaped.request(Turn(2, 0, passages=("a", "b")), "m")
        assert (request.path, request.is_streamed) == ("/v1/embeddings", False)
        assert json.loads(request.body) == {"model": "m", "input": ["a", "b"], "dimensions": 64}
        ranked = ShapedDialect(VllmDialect(), RequestShape()).request(Turn(2, 0, prompt="q", passages=("a",)), "m")
        assert ranked.path == "/v1/rerank"
        assert json.loads(ranked.body) == {"model": "m", "query": "q", "documents": ["a"]}
        with pytest.raises(BadOption, match="embeddings of the vllm format have no field for temperature"):
            ShapedDialect(VllmDialect(), RequestShape(temperature=1.0)).request(Turn(2, 0, passages=("a",)), "m")
        with pytest.raises(BadOption, match="the anthropic format has no embeddings"):
            ShapedDialect(AnthropicDialect(), RequestShape()).request(Turn(2, 0, passages=("a",)), "m")
