"""Plain chunks: what one step reads is what the general reader gives, and everything else is left to it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects.base import Finish, TokenDelta, TokenKind
from bakeoff.engines.dialects.openai import _chunk_events
from bakeoff.engines.dialects.plain_chunks import plain_events

WORDS = {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " word"}}]}
NOTHING = st.sampled_from([None, "", 0, [], {}, False])
VALUES = NOTHING | st.sampled_from(["x", 7, [7], [1.5], {"content": "x"}, "error", True, "stop", "length", -3])


def encoded(chunk: Any) -> bytes:
    return json.dumps(chunk).encode()


def test_the_next_words_are_read_with_their_ids_and_their_end():
    assert plain_events(encoded(WORDS)) == [TokenDelta(" word")]
    choice = {"index": 2, "text": "ab", "token_ids": [5, 6], "finish_reason": "stop", "logprobs": None}
    ended = plain_events(encoded({"choices": [choice], "usage": None}))
    assert ended == [TokenDelta("ab", (5, 6), None, TokenKind.TEXT, None, 2), Finish("stop")]


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": {"completion_tokens": 3}}, {"error": None}, {"object": "error"}, {"choices": []}, {"x_groq": {}},
        {"choices": [{"delta": {"content": ""}}]}, {"choices": [{"delta": {"content": "a", "reasoning": "b"}}]},
        {"choices": [{"delta": {"content": "a"}, "text": "b"}]}, {"choices": [{"text": "a"}, {"text": "b"}]},
        {"choices": [{"text": "a", "finish_reason": "content_filter"}]}, {"choices": [{"text": "a", "index": None}]},
        {"choices": [{"text": "a", "token_ids": ["1"]}]}, {"choices": [{"text": "a", "logprobs": {}}]},
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_general_reader(changes: dict[str, Any]):
    assert plain_events(encoded(WORDS | changes)) is None


@pytest.mark.parametrize(
    "data", [b"", b"[DONE]", b"{", b"{" * 10**5, b"\xff", b'{"choices": [{"text": "\xff"}]}', b"null"]
)
def test_what_is_no_chunk_is_left_to_it_too(data: bytes):
    assert plain_events(data) is None


FIELDS = {
    "delta": [
        "content",
        "role",
        "refusal",
        "reasoning",
        "reasoning_content",
        "tool_calls",
        "function_call",
        "thinking",
    ],
    "choice": ["text", "index", "logprobs", "finish_reason", "stop_reason", "token_ids", "error", "usage", "message"],
    "chunk": ["id", "object", "created", "model", "usage", "error", "detail", "code", "x_groq", "type", "status"],
}
PART = {name: st.dictionaries(st.sampled_from(fields), VALUES, max_size=4) for name, fields in FIELDS.items()}


@given(PART["delta"], PART["choice"], PART["chunk"], st.booleans())
def test_both_readers_give_the_same_events(
    delta: dict[str, Any], choice: dict[str, Any], chunk: dict[str, Any], has_delta: bool
):
    made = {**chunk, "choices": [{**choice, **({"delta": delta} if has_delta else {})}]}
    plain = plain_events(encoded(made))
    if plain is not None:
        assert plain == _chunk_events(msgspec.json.decode(encoded(made)))
