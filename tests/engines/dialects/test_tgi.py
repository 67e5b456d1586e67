"""TGI's two dialects: requests against its published schema, and all kinds of events."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import (
    Event,
    Finish,
    SseParser,
    StreamFault,
    TgiDialect,
    TgiNativeDialect,
    TokenDelta,
    Usage,
)
from bakeoff.workloads import Message, Turn
from tests.engines.schema import body_problems, load_spec

CHAT = Turn(12, 3, messages=(Message("system", "Be short."), Message("user", "Größe?")))
COMPLETION = Turn(5, 4, prompt='The "capital"\nof')
SCHEMA = '{"type":"object","properties":{"city":{"type":"string"}}}'
NATIVE = (
    'data:{"index":1,"token":{"id":71,"text":" Par","logprob":-0.5,"special":false},"generated_text":null,'
    '"details":null}\n\n:\n\n'
    'data: {"index":2,"token":{"id":9,"text":"","logprob":-1.0,"special":false},"generated_text":null,'
    '"details":null}\n\n'
    'data: {"index":3,"token":{"id":8,"text":"í 🌍","logprob":null,"special":false},"generated_text":null,'
    '"details":null}\n\n'
    'data: {"index":4,"token":{"id":2,"text":"</s>","logprob":-0.1,"special":true},"generated_text":" Parí 🌍",'
    '"details":{"finish_reason":"eos_token","generated_tokens":4,"seed":null,"input_length":5}}\n\n'
).encode()
NATIVE_EVENTS: list[Event] = [
    TokenDelta(" Par", (71,), (-0.5,)),
    TokenDelta("", (9,), (-1.0,)),
    TokenDelta("í 🌍", (8,)),
    TokenDelta("", (2,), (-0.1,)),
    Finish("eos_token"),
    Usage(5, 4, in_choice=True),
]
_CHUNK = '"id":"","created":1,"model":"m","system_fingerprint":"3.3.6-dev0"'
CHAT_STREAM = (
    "".join(
        f'data: {{"object":"chat.completion.chunk",{_CHUNK},{rest}}}\n\n'
        for rest in (
            '"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"logprobs":null,"finish_reason":null}]',
            '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":"stop"}]',
            '"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}',
        )
    ).encode()
    + b"data: [DONE]\n\n"
)
COMPLETION_STREAM = (
    "".join(
        f'data: {{"object":"text_completion",{_CHUNK},{rest}}}\n\n'
        for rest in (
            '"choices":[{"index":0,"text":" Par","logprobs":null,"finish_reason":""}]',
            (
                '"choices":[{"index":0,"text":"is","logprobs":null,"finish_reason":"length"}],'
                '"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}'
            ),
        )
    ).encode()
    + b"data: [DONE]\n\n"
)


def decode(dialect: TgiDialect, reads: list[bytes]) -> list[Event]:
    parser, reader = SseParser(), dialect.reader()
    return [event for read in reads for data in parser.feed(read) for event in reader.events(data)]


class TestRequests:
    @pytest.mark.parametrize("dialect", [TgiDialect(), TgiNativeDialect()])
    @pytest.mark.parametrize("logprobs", [True, False])
    @pytest.mark.parametrize(
        "turn", [CHAT, COMPLETION, *(msgspec.structs.replace(turn, json_schema=SCHEMA) for turn in (CHAT, COMPLETION))]
    )
    def test_every_body_keeps_to_the_published_schema(self, dialect: TgiDialect, turn: Turn, logprobs: bool) -> None:
        request = dialect.request(turn, "smol", logprobs=logprobs)
        assert body_problems(load_spec("tgi-openapi.json"), request.path, request.body) == []

    def test_greedy_is_a_request_without_a_temperature_since_zero_is_refused(self) -> None:
        request = TgiNativeDialect().request(COMPLETION, "smol")
        assert request.path == "/generate_stream"
        assert request.headers == {"content-type": "application/json", "accept": "text/event-stream"}
        assert json.loads(request.body) == {
            "inputs": 'The "capital"\nof',
            "parameters": {"max_new_tokens": 4, "do_sample": False, "details": True},
        }

    def test_an_answer_above_1024_tokens_is_one_request_all_the_same(self) -> None:
        """The server divides it; requests piece by piece would send the prompt again and hide the stall."""
        body = json.loads(TgiNativeDialect().request(Turn(5, 3000, prompt="Hi"), "smol").body)
        assert body["parameters"]["max_new_tokens"] == 3000

    def test_prompts_are_text_since_it_takes_no_token_ids(self) -> None:
        for dialect in (TgiDialect(), TgiNativeDialect()):
            body = json.loads(dialect.request(COMPLETION, "smol").body)
            assert (body.get("inputs") or body["prompt"][0]) == COMPLETION.prompt

    def test_neither_dialect_claims_to_force_the_length(self) -> None:
        for dialect in (TgiDialect(), TgiNativeDialect()):
            body = dialect.request(COMPLETION, "smol").body
            assert not dialect.exact_length
            assert b"ignore_eos" not in body
            assert b"min_" not in body

    def test_chats_go_by_the_openai_route_in_both(self) -> None:
        for dialect in (TgiDialect(), TgiNativeDialect()):
            request = dialect.request(CHAT, "smol")
            assert request.path == "/v1/chat/completions"
            assert json.loads(request.body) == {
                "model": "smol",
                "stream": True,
                "max_tokens": 3,
                "temperature": 0,
                "stream_options": {"include_usage": True},
                "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Größe?"}],
            }

    def test_completions_of_the_openai_route(self) -> None:
        request = TgiDialect().request(COMPLETION, "smol", logprobs=True)
        assert request.path == "/v1/completions"
        assert json.loads(request.body) == {
            "model": "smol", "stream": True, "max_tokens": 4, "temperature": 0, "prompt": ['The "capital"\nof'],
        }  # fmt: skip

    def test_a_schema_is_a_grammar_in_its_own_spelling(self) -> None:
        turn = msgspec.structs.replace(COMPLETION, json_schema=SCHEMA)
        grammar = {"type": "json", "value": json.loads(SCHEMA)}
        assert json.loads(TgiNativeDialect().request(turn, "m").body)["parameters"]["grammar"] == grammar
        chat = msgspec.structs.replace(CHAT, json_schema=SCHEMA)
        assert json.loads(TgiDialect().request(chat, "m").body)["response_format"] == grammar


class TestNativeEvents:
    @pytest.mark.parametrize("cut", range(0, len(NATIVE), 7))
    def test_each_event_is_one_token_with_its_id_at_every_cut(self, cut: int) -> None:
        assert decode(TgiNativeDialect(), [NATIVE[:cut], NATIVE[cut:]]) == NATIVE_EVENTS

    def test_the_end_of_sequence_is_a_counted_token_without_text(self) -> None:
        tokens = [event for event in NATIVE_EVENTS if isinstance(event, TokenDelta)]
        usage = NATIVE_EVENTS[-1]
        assert isinstance(usage, Usage)
        assert len(tokens) == usage.output_tokens
        assert "</s>" not in "".join(token.text for token in tokens)

    def test_a_stream_that_breaks_has_no_finish(self) -> None:
        broken = NATIVE[: NATIVE.rindex(b"data: ")]
        assert not [event for event in decode(TgiNativeDialect(), [broken]) if isinstance(event, Finish | Usage)]

    def test_a_last_event_without_its_details_still_ends_the_answer(self) -> None:
        last = b'{"index":1,"token":{"id":2,"text":"x","logprob":0,"special":false},"generated_text":"","details":null}'
        assert TgiNativeDialect().events(last) == [TokenDelta("x", (2,), (0.0,)), Finish("unknown")]

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            ("overloaded", "Model is overloaded"),
            ("validation", "Input validation error: `temperature` must be strictly positive"),
            ("generation", "Request failed during generation: CUDA out of memory"),
            ("incomplete_generation_stream", "Incomplete generation stream"),
        ],
    )
    def test_errors_under_status_200_are_faults(self, kind: str, message: str) -> None:
        data = json.dumps({"error": message, "error_type": kind}).encode()
        assert TgiNativeDialect().events(data) == [StreamFault(message)]

    @given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_random_bytes_raise_nothing(self, data: bytes) -> None:
        for dialect in (TgiNativeDialect(), TgiDialect()):
            assert all(isinstance(event, Event) for event in dialect.events(data))
            assert dialect.refusal(500, data).startswith("HTTP 500: ")


class TestOpenAiEvents:
    @pytest.mark.parametrize("dialect", [TgiDialect(), TgiNativeDialect()])
    def test_in_chat_every_chunk_is_a_token_the_silent_end_of_sequence_too(self, dialect: TgiDialect) -> None:
        assert decode(dialect, [CHAT_STREAM]) == [TokenDelta("Hi"), TokenDelta(""), Finish("stop"), Usage(5, 2)]

    def test_its_errors_are_faults_though_the_end_mark_follows(self) -> None:
        stream = b'data: {"error":{"message":"Model is overloaded","http_status_code":429}}\n\ndata: [DONE]\n\n'
        assert decode(TgiDialect(), [stream]) == [StreamFault("Model is overloaded")]


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "body", "line"),
        [
            (429, b'{"error":"Model is overloaded","error_type":"overloaded"}', "Model is overloaded"),
            (422, b"Failed to deserialize the JSON body into the target type: missing field `inputs` at line 1",
             "Failed to deserialize the JSON body into the target type: missing field `inputs` at line 1"),
            (401, b"", "empty answer"),
        ],
    )  # fmt: skip
    def test_each_shape_becomes_one_line(self, status: int, body: bytes, line: str) -> None:
        assert TgiNativeDialect().refusal(status, body) == f"HTTP {status}: {line}"


def test_the_samples_have_the_format_of_the_published_schema() -> None:
    """This file decodes what the schema describes, not our own idea of it."""
    schemas = load_spec("tgi-openapi.json")["components"]["schemas"]
    required = set(schemas["StreamResponse"]["required"]) | {"generated_text", "details"}
    for data in SseParser().feed(NATIVE):
        event = json.loads(data)
        assert required == set(event)
        assert set(schemas["Token"]["required"]) == set(event["token"])
        if event["details"]:
            assert set(schemas["StreamDetails"]["properties"]) == set(event["details"])
