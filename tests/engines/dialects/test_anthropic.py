"""Dialect of Anthropic's Messages API: exact requests, usage in parts, all events and errors."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import (
    AnthropicDialect,
    EmptyChunk,
    Event,
    Finish,
    SseParser,
    StreamFault,
    TokenDelta,
    TokenKind,
    Usage,
)
from bakeoff.workloads import Message, Turn
from tests.engines.schema import SPECS, body_problems, load_spec

CHAT = Turn(12, 3, messages=(Message("system", "Be short."), Message("user", "Größe?"), Message("assistant", "Ja?"),
                             Message("user", "Nein.")))  # fmt: skip
START = {"input_tokens": 12, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 2048, "output_tokens": 1}


def stream(*events: dict) -> bytes:
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events
    ).encode()


def start(**usage: object) -> dict:
    return {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": usage}}


def delta(kind: str, **fields: object) -> dict:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}


def end(reason: str | None = "end_turn", **usage: object) -> dict:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


STOP = {"type": "message_stop"}
WHOLE = stream(
    start(**START),
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    delta("thinking_delta", thinking="Hm, "),
    {"type": "ping"},
    delta("signature_delta", signature="EqQB"),
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    delta("text_delta", text="Grüße "),
    {"type": "novelty", "delta": {"type": "text_delta", "text": "?"}},
    delta("text_delta", text="🌍"),
    {"type": "content_block_stop", "index": 1},
    end(output_tokens=9),
    STOP,
)
WHOLE_EVENTS: list[Event] = [
    TokenDelta("Hm, ", kind=TokenKind.REASONING),
    EmptyChunk(),
    TokenDelta("Grüße "),
    TokenDelta("🌍"),
    Usage(2160, 9, 2048),
    Finish("end_turn"),
]


def decode(*reads: bytes) -> list[Event]:
    parser, reader = SseParser(), AnthropicDialect().reader()
    return [event for read in reads for data in parser.feed(read) for event in reader.events(data)]


class TestRequests:
    def test_system_messages_go_into_their_own_field(self) -> None:
        request = AnthropicDialect().request(CHAT, "claude")
        assert request.path == "/v1/messages"
        assert request.headers == {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": "2023-06-01",
        }
        assert json.loads(request.body) == {
            "model": "claude",
            "max_tokens": 3,
            "stream": True,
            "temperature": 0,
            "system": "Be short.",
            "messages": [
                {"role": "user", "content": "Größe?"},
                {"role": "assistant", "content": "Ja?"},
                {"role": "user", "content": "Nein."},
            ],
        }

    def test_a_completion_is_one_message_of_the_user(self) -> None:
        body = json.loads(AnthropicDialect().request(Turn(5, 4, prompt="The capital of"), "m").body)
        assert body["messages"] == [{"role": "user", "content": "The capital of"}]
        assert "system" not in body

    def test_system_messages_are_joined(self) -> None:
        messages = (Message("system", "One."), Message("user", "Hi"), Message("system", "Two."))
        body = json.loads(AnthropicDialect().request(Turn(5, 4, messages=messages), "m").body)
        assert body["system"] == "One.\n\nTwo."
        assert body["messages"] == [{"role": "user", "content": "Hi"}]

    def test_no_cache_is_asked_for_unless_an_option_says_so(self) -> None:
        assert b"cache_control" not in AnthropicDialect().request(CHAT, "m").body

    @pytest.mark.parametrize("ttl", ["5m", "1h"])
    def test_a_cache_is_marked_at_the_system_or_else_the_first_message(self, ttl: str) -> None:
        mark = {"cache_control": {"type": "ephemeral", "ttl": ttl}}
        body = json.loads(AnthropicDialect(ttl).request(CHAT, "m").body)
        assert body["system"] == [{"type": "text", "text": "Be short.", **mark}]
        assert json.dumps(body).count("cache_control") == 1
        plain = json.loads(AnthropicDialect(ttl).request(Turn(5, 4, prompt="Hi"), "m").body)
        assert plain["messages"][0]["content"] == [{"type": "text", "text": "Hi", **mark}]

    @pytest.mark.parametrize(("kind", "shown"), [("thinking", ""), ("redacted_thinking", ""), ("thinking", "Hm.")])
    def test_reasoning_without_its_text_is_told(self, kind: str, shown: str) -> None:
        block = {"type": kind, "signature": ""}
        stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 60}}
        for at_once, later in ((shown, ""), ("", shown)):
            reader = AnthropicDialect("5m").reader()
            begun = {"type": "content_block_start", "index": 0, "content_block": block | {"thinking": at_once}}
            for event in (begun, delta("thinking_delta", thinking=later), delta("text_delta", text="Hi")):
                reader.events(json.dumps(event).encode())
            (usage,) = reader.events(json.dumps(stop).encode())
            assert usage == Usage(None, 60, hides_reasoning=not shown)

    def test_no_thinking_is_asked_for(self) -> None:
        """Thinking comes before the text, and its first token would be taken for the first token of the answer."""
        assert b"thinking" not in AnthropicDialect("5m").request(CHAT, "m").body

    def test_the_bound_is_all_that_it_says_of_the_length(self) -> None:
        dialect = AnthropicDialect()
        assert not dialect.exact_length
        assert dialect.request(CHAT, "m", logprobs=True) == dialect.request(CHAT, "m")

    @pytest.mark.parametrize("turn", [CHAT, Turn(5, 4, prompt="Hi")])
    def test_a_local_engine_that_speaks_it_knows_every_field(self, turn: Turn) -> None:
        request = AnthropicDialect().request(turn, "m")
        assert body_problems(load_spec("vllm-0.32.0-openapi.json"), request.path, request.body) == []


class TestEvents:
    def test_a_whole_stream_at_every_cut(self) -> None:
        for cut in range(len(WHOLE)):
            assert decode(WHOLE[:cut], WHOLE[cut:]) == WHOLE_EVENTS

    def test_pings_and_unknown_events_are_ignored(self) -> None:
        assert decode(stream({"type": "ping"}, {"type": "novelty", "text": "?"}, {"type": ""})) == []

    def test_the_first_events_count_of_output_is_not_added(self) -> None:
        assert decode(stream(start(input_tokens=3, output_tokens=1), end(output_tokens=7), STOP))[0] == Usage(3, 7)

    @pytest.mark.parametrize(
        ("first", "last", "usage"),
        [
            ({"input_tokens": 31, "output_tokens": 0}, {"input_tokens": 31, "output_tokens": 4,
             "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}, Usage(31, 4, 0)),  # vLLM
            ({"cache_read_input_tokens": 30, "input_tokens": 1, "output_tokens": 0}, {"output_tokens": 3},
             Usage(31, 3, 30)),  # llama-server
            (START, {"output_tokens": 7, "input_tokens": 12, "cache_creation_input_tokens": 0,
             "cache_read_input_tokens": 2148}, Usage(2160, 7, 2148)),  # a later value wins
            ({}, {"output_tokens": 2}, Usage(None, 2)),
            ({"input_tokens": 5, "cache_read_input_tokens": None}, {"output_tokens": 2}, Usage(5, 2)),
        ],
    )  # fmt: skip
    def test_usage_is_put_together_field_by_field(self, first: dict, last: dict, usage: Usage) -> None:
        usages = [event for event in decode(stream(start(**first), end(**last), STOP)) if isinstance(event, Usage)]
        assert usages == [usage]

    def test_output_is_cumulative_so_that_the_last_count_holds(self) -> None:
        events = decode(stream(start(input_tokens=3), end(None, output_tokens=4), end(output_tokens=9), STOP))
        assert events == [Usage(3, 4), Usage(3, 9), Finish("end_turn")]

    def test_without_its_end_mark_an_answer_is_not_whole(self) -> None:
        assert not [event for event in decode(stream(start(), end(output_tokens=1))) if isinstance(event, Finish)]

    @pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"])
    def test_it_ends_for_the_reason_that_was_given_before_the_mark(self, reason: str) -> None:
        assert decode(stream(end(reason), STOP))[-1] == Finish(reason)

    def test_an_end_without_a_reason_is_an_end(self) -> None:
        assert decode(stream(STOP)) == [Finish("unknown")]

    def test_a_tools_arguments_are_tokens_of_their_kind(self) -> None:
        events = decode(
            stream(delta("input_json_delta", partial_json=""), delta("input_json_delta", partial_json='{"a'))
        )
        assert events == [EmptyChunk(), TokenDelta('{"a', kind=TokenKind.TOOL)]

    def test_text_that_comes_with_the_beginning_of_a_block_is_not_lost(self) -> None:
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}}
        assert decode(stream(block)) == [TokenDelta("Hi")]

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded_error: Overloaded"),
            ({"message": "context is full", "code": 500}, "context is full"),
            ("boom", "boom"),
        ],
    )
    def test_errors_under_status_200_are_faults(self, error: object, message: str) -> None:
        assert decode(stream({"type": "error", "error": error, "request_id": "r"})) == [StreamFault(message)]

    @given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_random_bytes_raise_nothing(self, data: bytes) -> None:
        assert all(isinstance(event, Event) for event in AnthropicDialect().reader().events(data))
        assert AnthropicDialect().refusal(500, data).startswith("HTTP 500: ")

    @pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 9999])
    def test_invalid_data_is_a_fault_that_quotes_it(self, data: bytes) -> None:
        (fault,) = AnthropicDialect().reader().events(data)
        assert isinstance(fault, StreamFault)
        assert fault.message.startswith("not a chunk of this format (")


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}',
         "overloaded_error: Overloaded"),
        (429, b'{"type":"error","error":{"type":"rate_limit_error","message":"slow\\n down"}}',
         "rate_limit_error: slow down"),
        (400, b'{"error":{"message":"too large","code":400,"type":"exceed_context_size_error"}}',
         "exceed_context_size_error: too large"),
        (422, b'{"detail":"no such field"}', "no such field"),
        (502, b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (503, b"", "empty answer"),
    ],
)  # fmt: skip
def test_each_shape_of_a_refusal_becomes_one_line(status: int, body: bytes, line: str) -> None:
    assert AnthropicDialect().refusal(status, body) == f"HTTP {status}: {line}"


@pytest.mark.parametrize(
    ("name", "text", "usage"),
    [
        ("vllm_messages_stream.http", "Hello! How can", Usage(31, 4, 0)),
        ("llama_server_messages_stream.http", "I hope you", Usage(31, 3, 30)),
    ],
)
def test_recordings_of_local_engines(name: str, text: str, usage: Usage) -> None:
    file: Path = SPECS / "captures" / name
    if not file.is_file():
        pytest.skip(f"{name} is not on this machine")
    events = decode(file.read_bytes().split(b"\n\n", 2)[2])
    assert "".join(event.text for event in events if isinstance(event, TokenDelta)) == text
    assert events[-2:] == [usage, Finish("max_tokens")]
    assert len(list(itertools.takewhile(lambda event: isinstance(event, TokenDelta), events))) == usage.output_tokens
