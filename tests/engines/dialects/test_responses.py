"""Dialects of the Responses API and of OpenAI's service: exact requests and all events."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import (
    Dialect,
    EmptyChunk,
    Event,
    Finish,
    OpenAiServiceDialect,
    ResponsesDialect,
    SseParser,
    StreamFault,
    TokenDelta,
    TokenKind,
    Usage,
)
from bakeoff.workloads import Message, Turn
from tests.engines.schema import SPECS, body_problems, load_spec

CHAT = Turn(12, 3, messages=(Message("system", "Be short."), Message("user", "Größe?")))
COMPLETION = Turn(5, 4, prompt="The capital of")
UNPADDED = {"include_obfuscation": False}


def data(kind: str, **fields: object) -> dict:
    return {"type": kind, "sequence_number": 1, **fields}


def text_delta(text: str, kind: str = "output_text", **fields: object) -> dict:
    return data(f"response.{kind}.delta", item_id="m", output_index=0, content_index=0, delta=text, **fields)


def ended(kind: str, status: str, reasoning: int = 0, **fields: object) -> dict:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 7,
             "output_tokens_details": {"reasoning_tokens": reasoning}, "total_tokens": 16}  # fmt: skip
    return data(f"response.{kind}", response={"id": "r", "status": status, "usage": usage, **fields})


def decode(dialect: Dialect, *events: dict) -> list[Event]:
    reader = dialect.reader()
    return [decoded for event in events for decoded in reader.events(json.dumps(event).encode())]


class TestRequests:
    def test_a_chat_is_a_list_of_items(self) -> None:
        request = ResponsesDialect().request(CHAT, "m")
        assert request.path == "/v1/responses"
        assert json.loads(request.body) == {
            "model": "m",
            "input": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Größe?"}],
            "max_output_tokens": 3,
            "stream": True,
            "temperature": 0,
        }

    def test_a_completion_is_a_text(self) -> None:
        assert json.loads(ResponsesDialect().request(COMPLETION, "m").body)["input"] == "The capital of"

    def test_padding_is_switched_off_at_the_service_only(self) -> None:
        """Engines refuse unknown fields."""
        assert b"stream_options" not in ResponsesDialect().request(CHAT, "m").body
        assert json.loads(ResponsesDialect(official=True).request(CHAT, "m").body)["stream_options"] == UNPADDED

    def test_logprobs_and_schemas_have_their_own_places(self) -> None:
        turn = Turn(5, 4, prompt="x", json_schema='{"type":"object"}')
        body = json.loads(ResponsesDialect().request(turn, "m", logprobs=True).body)
        assert body["include"] == ["message.output_text.logprobs"]
        assert body["text"] == {
            "format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
        }

    def test_it_does_not_claim_to_force_the_length(self) -> None:
        assert not ResponsesDialect().exact_length

    @pytest.mark.parametrize("turn", [CHAT, COMPLETION])
    def test_a_local_engine_that_speaks_it_knows_every_field(self, turn: Turn) -> None:
        request = ResponsesDialect().request(turn, "m", logprobs=True)
        assert body_problems(load_spec("vllm-0.32.0-openapi.json"), request.path, request.body) == []


class TestEvents:
    def test_text_thoughts_tools_and_refusals_are_tokens_of_their_kinds(self) -> None:
        assert decode(
            ResponsesDialect(), text_delta("Hm", "reasoning_text"), text_delta("ok", "reasoning_summary_text"),
            text_delta("Hi"), text_delta("{", "function_call_arguments"), text_delta("No.", "refusal"), text_delta(""),
        ) == [
            TokenDelta("Hm", kind=TokenKind.REASONING), TokenDelta("ok", kind=TokenKind.REASONING), TokenDelta("Hi"),
            TokenDelta("{", kind=TokenKind.TOOL), TokenDelta("No."), EmptyChunk(),
        ]  # fmt: skip

    def test_what_was_said_is_not_counted_again_when_it_is_summed_up(self) -> None:
        done = data("response.output_text.done", text="Hi")
        part = data("response.content_part.done", part={"text": "Hi"})
        assert decode(ResponsesDialect(), data("response.created", response={"status": "queued"}), done, part) == []

    def test_padding_is_no_text(self) -> None:
        assert decode(ResponsesDialect(), text_delta("Hi", obfuscation="k3")) == [TokenDelta("Hi")]

    def test_logprobs_come_with_their_text(self) -> None:
        logprobs = [{"token": "Hi", "logprob": -0.25, "bytes": [], "top_logprobs": []}]
        assert decode(ResponsesDialect(), text_delta("Hi", logprobs=logprobs)) == [TokenDelta("Hi", logprobs=(-0.25,))]

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            (ended("completed", "completed"), "completed"),
            (ended("incomplete", "incomplete", incomplete_details={"reason": "max_output_tokens"}),
             "max_output_tokens"),
            (ended("completed", "incomplete", incomplete_details={"reason": "max_output_tokens"}),
             "max_output_tokens"),  # vLLM
            (ended("completed", "completed", incomplete_details=None), "completed"),
            (ended("incomplete", "incomplete"), "incomplete"),
        ],
    )  # fmt: skip
    def test_the_last_event_says_why_it_ended_and_the_counts(self, event: dict, reason: str) -> None:
        assert decode(ResponsesDialect(), event) == [Finish(reason), Usage(9, 7, 4)]

    @pytest.mark.parametrize(
        ("event", "message"),
        [
            (data("error", code="server_error", message="boom", param=None), "boom"),
            (data("error", error={"message": "boom", "code": 1}), "boom"),
            ({"error": "CUDA out of memory"}, "CUDA out of memory"),
            (data("response.failed", response={"status": "failed", "error": {"code": "x", "message": "boom"}}), "boom"),
            (data("response.failed", response={"status": "failed"}), "the server reports a failed response"),
        ],
    )
    def test_failures_under_status_200_are_faults(self, event: dict, message: str) -> None:
        assert decode(ResponsesDialect(), event) == [StreamFault(message)]

    def test_an_error_that_says_nothing_is_shown_whole(self) -> None:
        assert decode(ResponsesDialect(), {"type": "error"}) == [StreamFault('{"type": "error"}')]

    def test_an_end_mark_is_neither_needed_nor_trusted(self) -> None:
        assert ResponsesDialect().reader().events(b"[DONE]") == []

    @given(garbage=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_random_bytes_raise_nothing(self, garbage: bytes) -> None:
        for dialect in (ResponsesDialect(), OpenAiServiceDialect()):
            assert all(isinstance(event, Event) for event in dialect.reader().events(garbage))
            assert dialect.refusal(500, garbage).startswith("HTTP 500: ")

    def test_refusals_are_one_line(self) -> None:
        body = b'{"error":{"message":"Rate limit reached","type":"requests","param":null,"code":"rate_limit_exceeded"}}'
        assert ResponsesDialect().refusal(429, body) == "HTTP 429: Rate limit reached"


class TestReasoning:
    """Whether it is part of what was streamed is decided where the stream is decoded."""

    def test_responses_state_it(self) -> None:
        events = decode(ResponsesDialect(), text_delta("Hi"), ended("completed", "completed", reasoning=5))
        assert events[-1] == Usage(9, 7, 4, reasoning_tokens=5, total_tokens=16)

    def test_chats_state_it(self) -> None:
        details = {"completion_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 16}
        usage = {"prompt_tokens": 9, "completion_tokens": 7, **details}
        expected = Usage(9, 7, reasoning_tokens=5, total_tokens=16)
        assert decode(OpenAiServiceDialect(), {"choices": [], "usage": usage}) == [expected]


class TestServiceChat:
    def test_it_bounds_a_chat_by_the_newer_name_and_without_padding(self) -> None:
        body = json.loads(OpenAiServiceDialect().request(CHAT, "m").body)
        assert body == {
            "model": "m", "stream": True, "max_completion_tokens": 3, "temperature": 0,
            "stream_options": {"include_usage": True, "include_obfuscation": False},
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Größe?"}],
        }  # fmt: skip

    def test_completions_have_the_older_name(self) -> None:
        body = json.loads(OpenAiServiceDialect().request(COMPLETION, "m").body)
        assert (body["max_tokens"], body["prompt"]) == (4, "The capital of")
        assert "max_completion_tokens" not in body


@pytest.mark.parametrize(
    ("name", "text", "last"),
    [
        ("transformers_serve_responses_stream.http", "Hello! How", [Finish("completed"), Usage(31, 3, 0)]),
        ("vllm_responses_stream.http", "Hi, nice to", [Finish("max_output_tokens"), Usage(31, 4, 0)]),
    ],
)
def test_recordings_of_local_engines(name: str, text: str, last: list[Event]) -> None:
    file: Path = SPECS / "captures" / name
    if not file.is_file():
        pytest.skip(f"{name} is not on this machine")
    reader = ResponsesDialect().reader()
    body = file.read_bytes().split(b"\n\n", 2)[2]
    events = [event for payload in SseParser().feed(body) for event in reader.events(payload)]
    assert events[:-2] == [TokenDelta(piece) for piece in _pieces(text)]
    assert events[-2:] == last


def _pieces(text: str) -> list[str]:
    return ["Hello", "!", " How"] if text == "Hello! How" else ["Hi", ",", " nice", " to"]
