"""The OpenAI format: exact requests, all kinds of chunks, and invalid data."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import (
    Dialect,
    EmptyChunk,
    Event,
    Finish,
    OpenAiDialect,
    ReferenceDialect,
    SseParser,
    StreamFault,
    TokenDelta,
    TokenKind,
    TransformersDialect,
    Usage,
)
from bakeoff.workloads import Message, Turn
from tests.engines.dialects.streams import LLAMA_SERVER_CHAT, TRANSFORMERS_CHAT, TRANSFORMERS_COMPLETION, VLLM_CHAT

CHAT = Turn(12, 3, messages=(Message("system", "Be short."), Message("user", "Größe?")))
COMPLETION = Turn(5, 4, prompt='The "capital"\nof')
EMPTY = EmptyChunk()
DIALECTS = [OpenAiDialect(), ReferenceDialect(), TransformersDialect()]
KEYS = ("choices", "usage", "error", "object", "message", "delta", "text", "content", "token_ids", "finish_reason",
        "tool_calls", "reasoning", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "detail")  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | st.just("error"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


def events(payload: object) -> list[Event]:
    return OpenAiDialect().events(json.dumps(payload).encode())


def choice(**fields: object) -> dict[str, object]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, **fields}]}


def decode(dialect: Dialect, reads: list[bytes]) -> list[Event]:
    parser = SseParser()
    return [event for read in reads for data in parser.feed(read) for event in dialect.events(data)]


class TestRequests:
    def test_chat(self) -> None:
        request = OpenAiDialect().request(CHAT, "smol")
        assert request.path == "/v1/chat/completions"
        assert request.headers == {"content-type": "application/json", "accept": "text/event-stream"}
        assert json.loads(request.body) == {
            "model": "smol",
            "stream": True,
            "max_tokens": 3,
            "temperature": 0,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Größe?"}],
        }

    def test_completion(self) -> None:
        request = OpenAiDialect().request(COMPLETION, "smol")
        assert request.path == "/v1/completions"
        assert json.loads(request.body) == {
            "model": "smol",
            "stream": True,
            "max_tokens": 4,
            "temperature": 0,
            "stream_options": {"include_usage": True},
            "prompt": 'The "capital"\nof',
        }

    @pytest.mark.parametrize("dialect", DIALECTS)
    @pytest.mark.parametrize("turn", [CHAT, COMPLETION])
    def test_the_same_turn_is_the_same_bytes(self, dialect: OpenAiDialect, turn: Turn) -> None:
        assert dialect.request(turn, "m") == type(dialect)().request(turn, "m")

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_a_request_carries_no_key_and_its_headers_values_are_not_printed(self, dialect: OpenAiDialect) -> None:
        request = dialect.request(CHAT, "smol")
        assert set(request.headers) == {"content-type", "accept"}, "keys are the server's access, not the format's"
        assert "application/json" not in repr(request)


class TestEvents:
    def test_a_chunk_that_only_names_the_role_is_no_token(self) -> None:
        assert events(choice(delta={"role": "assistant"}, finish_reason=None)) == [EMPTY]
        assert events(choice(delta={"role": "assistant", "content": ""}, finish_reason=None)) == [EMPTY]
        assert events(choice(delta={"role": "assistant", "content": None})) == [EMPTY]

    def test_an_empty_delta_is_no_token(self) -> None:
        assert events(choice(delta={})) == [EMPTY]
        assert events(choice(delta=None)) == [EMPTY]
        assert events(choice()) == [EMPTY]
        assert events(choice(text="")) == [EMPTY]

    def test_text_of_chat_and_of_completions(self) -> None:
        assert events(choice(delta={"content": "Hel"})) == [TokenDelta("Hel")]
        assert events(choice(text=" Par")) == [TokenDelta(" Par")]
        assert events(choice(delta={"content": " "})) == [TokenDelta(" ")], "a blank is a token"

    def test_ids_come_with_their_text(self) -> None:
        assert events(choice(delta={"content": "Hello"}, token_ids=[7, 8])) == [TokenDelta("Hello", (7, 8))]
        assert events(choice(text="x", token_ids=[9])) == [TokenDelta("x", (9,))]

    def test_ids_without_text_are_tokens_all_the_same(self) -> None:
        """Half a character: the engine holds the text back, but the token was generated."""
        assert events(choice(delta={"content": ""}, token_ids=[7])) == [TokenDelta("", (7,))]
        assert events(choice(text="", token_ids=[7])) == [TokenDelta("", (7,))]
        assert events(choice(text="", token_ids=[])) == [EMPTY]
        assert events(choice(text="a", token_ids=None)) == [TokenDelta("a")]

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_reasoning_is_a_token_of_its_kind(self, field: str) -> None:
        assert events(choice(delta={field: "hm"}, token_ids=[5])) == [TokenDelta("hm", (5,), kind=TokenKind.REASONING)]
        assert events(choice(delta={field: "", "content": "so"})) == [TokenDelta("so")]

    def test_a_tool_call_is_a_token_of_its_kind(self) -> None:
        calls = [{"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": "{"}}]
        (delta,) = events(choice(delta={"tool_calls": calls}, token_ids=[5]))
        assert isinstance(delta, TokenDelta)
        assert (delta.kind, delta.token_ids, json.loads(delta.text)) == (TokenKind.TOOL, (5,), calls)
        assert events(choice(delta={"tool_calls": []})) == [EMPTY]

    def test_a_chunk_that_says_several_things_loses_none_and_counts_its_ids_once(self) -> None:
        """The chunk does not show which ids belong to which part, so the last part carries all of them."""
        delta = {"content": "so", "reasoning": "hm", "tool_calls": [1]}
        assert events(choice(delta=delta, token_ids=[1, 2, 3])) == [
            TokenDelta("hm", None, kind=TokenKind.REASONING),
            TokenDelta("so", None, kind=TokenKind.TEXT),
            TokenDelta("[1]", (1, 2, 3), kind=TokenKind.TOOL),
        ]

    @pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
    def test_a_finish_reason_ends_the_answer_after_its_last_token(self, reason: str) -> None:
        assert events(choice(delta={}, finish_reason=reason)) == [EMPTY, Finish(reason)]
        assert events(choice(text="x", finish_reason=reason)) == [TokenDelta("x"), Finish(reason)]

    def test_usage_with_empty_choices(self) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        assert events({"choices": [], "usage": usage}) == [Usage(9, 4, None)]
        assert events({"choices": [], "usage": None}) == []
        assert events({"choices": [], "usage": {}}) == [Usage(None, None, None)]

    def test_usage_together_with_the_finish(self) -> None:
        payload = choice(text="", finish_reason="length") | {"usage": {"prompt_tokens": 5, "completion_tokens": 1}}
        assert events(payload) == [EMPTY, Finish("length"), Usage(5, 1, in_choice=True)]

    def test_cached_tokens_are_kept_and_zero_is_not_missing(self) -> None:
        for details, cached in (({"cached_tokens": 16}, 16), ({"cached_tokens": 0}, 0), ({}, None), (None, None)):
            usage = {"prompt_tokens": 20, "completion_tokens": 1, "prompt_tokens_details": details}
            assert events({"choices": [], "usage": usage}) == [Usage(20, 1, cached)]

    @pytest.mark.parametrize(
        ("payload", "message"),
        [
            ({"error": {"message": "context is full", "type": "server_error", "code": 500}}, "context is full"),
            ({"error": {"message": "busy", "http_status_code": 429}}, "busy"),
            ({"error": "CUDA out of memory"}, "CUDA out of memory"),
            ({"error": "overloaded", "error_type": "overloaded"}, "overloaded"),
            ({"error": {"code": 7}}, '{"code":7}'),
            ({"error": ["a", "b"]}, '["a","b"]'),
            ({"object": "error", "message": "max length is 10", "type": "BadRequestError"}, "max length is 10"),
            ({"object": "error", "message": " two\n lines "}, "two lines"),
            ({"object": "error"}, '{"object":"error"}'),
            (choice(text="x") | {"error": "broken"}, "broken"),
        ],
    )  # fmt: skip
    def test_errors_under_status_200_are_faults_in_every_shape(self, payload: object, message: str) -> None:
        assert events(payload) == [StreamFault(message)]

    def test_a_null_error_is_no_fault(self) -> None:
        assert events(choice(text="x") | {"error": None}) == [TokenDelta("x")]

    @pytest.mark.parametrize("end", [b"[DONE]", b"[DONE] "])
    def test_the_end_mark_says_nothing(self, end: bytes) -> None:
        assert OpenAiDialect().events(end) == []


class TestGarbage:
    @pytest.mark.parametrize(
        "data",
        [
            b"", b"not json", b"{", b"[1]", b"3", b'"text"', b'{"choices":3}', b'{"choices":[3]}',
            b'{"choices":[{"text":5}]}', b'{"choices":[{"delta":{"content":5}}]}', b"\xff\xfe",
            b"[" * 100_000, b'{"error":' + b"[" * 100_000,
        ],
    )  # fmt: skip
    def test_invalid_data_is_a_fault_that_quotes_it(self, data: bytes) -> None:
        (fault,) = OpenAiDialect().events(data)
        assert isinstance(fault, StreamFault)
        assert fault.message.startswith("not a chunk of this format (")
        assert len(fault.message) < 1000
        assert "\n" not in fault.message

    @pytest.mark.parametrize("dialect", DIALECTS)
    @given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_random_bytes_raise_nothing(self, dialect: OpenAiDialect, data: bytes) -> None:
        events = dialect.events(data)
        assert all(isinstance(event, Event) for event in events)
        assert dialect.refusal(500, data).startswith("HTTP 500: ")

    @given(payload=JSON)
    def test_random_json_never_raises_and_gives_events_that_can_be_stored(self, payload: object) -> None:
        data = json.dumps(payload).encode()
        events = OpenAiDialect().events(data)
        assert all(isinstance(event, Event) for event in events)
        msgspec.json.encode(events)
        assert "\n" not in OpenAiDialect().refusal(500, data)

    @given(payload=JSON)
    def test_json_of_another_shape_than_an_object_is_a_fault(self, payload: object) -> None:
        if not isinstance(payload, dict) and payload not in (None, []):
            assert isinstance(events(payload)[0], StreamFault)


class TestRefusals:
    """Bodies from the table of error formats: the engine, the status and the resulting line."""

    @pytest.mark.parametrize(
        ("status", "body", "line"),
        [
            (404, (b'{"error":{"message":"The model `nope` does not exist.","type":"NotFoundError","param":"model",'
                  b'"code":404}}'), "The model `nope` does not exist."),  # vLLM
            (400, b'{"error":{"message":"1 validation error:\\n  {\'loc\': \'body\'}","type":"Bad Request"}}',
             "1 validation error: {'loc': 'body'}"),  # vLLM, several lines
            (400, b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}',
             "too long"),  # TensorRT-LLM, SGLang
            (400, b'{"error":"text only"}', "text only"),  # TensorRT-LLM
            (429, b'{"error":"Model is overloaded","error_type":"overloaded"}', "Model is overloaded"),  # TGI
            (400, b'{"error":{"code":400,"message":"too large","type":"exceed_context_size_error"}}',
             "too large"),  # llama-server
            (500, (b'{"error":{"message":"3 validation errors:\\n\\n  File","type":"internal_server_error",'
                  b'"param":null,"code":null}}'), "3 validation errors: File"),  # llama-cpp-python
            (422, b'{"detail":"Unexpected fields in the request: {\'ignore_eos\'}"}',
             "Unexpected fields in the request: {'ignore_eos'}"),  # transformers serve
            (422, b'{"detail":[{"type":"json_invalid","loc":["body",0]}]}',
             '[{"type":"json_invalid","loc":["body",0]}]'),  # transformers serve, bad JSON
            (500, b"Internal Server Error", "Internal Server Error"),  # transformers serve, plain text
            (502, b"<html>\r\n<body>Bad Gateway</body>\r\n</html>", "<html> <body>Bad Gateway</body> </html>"),
            (503, b'{"status":"unhealthy"}', '{"status":"unhealthy"}'),
            (503, b'"busy"', "busy"),
            (503, b"[1]", "[1]"),
            (503, b"null", "null"),
            (500, b'{"error":{"message":null,"code":1}}', '{"message":null,"code":1}'),
            (503, b"", "empty answer"),
            (422, b'{"detail":[{"loc":["body","n"],"msg":"not permitted"}]}', "n: not permitted"),
            (400, b'{"error":"Bad Request","message":["n must be 1","m is unknown"]}', "n must be 1; m is unknown"),
            (400, b'{"title":"Validation failed","status":400,"errors":{"n":["too large"]}}', '{"n":["too large"]}'),
            (400, b'{"error":"Bad Request","message":"n must be 1"}', "n must be 1"),
            (400, b'{"error":"too long: 9000 > 8192","message":"Bad Request"}', "too long: 9000 > 8192"),
            (400, b'{"title":"Bad","detail":"prompt missing","message":"An error occurred"}', "prompt missing"),
            (500, b"\xff\xfe", "\ufffd\ufffd"),
            (500, b'{"error":"\xff"}', '{"error":"\ufffd"}'),
        ],
    )  # fmt: skip
    def test_each_shape_becomes_one_line(self, status: int, body: bytes, line: str) -> None:
        for dialect in DIALECTS:
            assert dialect.refusal(status, body) == f"HTTP {status}: {line}"

    def test_a_page_long_body_is_clipped(self) -> None:
        assert OpenAiDialect().refusal(500, b"x" * 501) == f"HTTP 500: {'x' * 500}…"
        assert OpenAiDialect().refusal(500, b"x" * 500) == f"HTTP 500: {'x' * 500}"
        assert len(OpenAiDialect().refusal(500, b"[" * 100_000)) < 600


class TestWholeStreams:
    @pytest.mark.parametrize(
        ("stream", "expected"),
        [
            (VLLM_CHAT, [EMPTY, TokenDelta("Grüß", (11, 12)), TokenDelta("e 🌍", (13,)), Finish("length"),
                         Usage(29, 3, 16)]),
            (TRANSFORMERS_CHAT, [EMPTY, TokenDelta("Hel"), EMPTY, Finish("length"), Usage(31, 1, in_choice=True)]),
            (TRANSFORMERS_COMPLETION, [TokenDelta(" Par"), EMPTY, Finish("length"), Usage(5, 1, in_choice=True)]),
            (LLAMA_SERVER_CHAT, [EMPTY, TokenDelta("Hi"), StreamFault("context is full")]),
        ],
        ids=["vllm", "transformers-chat", "transformers-completion", "llama-server"],
    )  # fmt: skip
    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_events_are_the_same_at_every_cut(
        self, dialect: OpenAiDialect, stream: bytes, expected: list[Event]
    ) -> None:
        assert decode(dialect, [stream]) == expected
        assert decode(dialect, [bytes([byte]) for byte in stream]) == expected
        for at in range(len(stream)):
            assert decode(dialect, [stream[:at], stream[at:]]) == expected

    def test_pairs_of_cuts_through_a_character_change_nothing(self) -> None:
        whole = decode(OpenAiDialect(), [VLLM_CHAT])
        start = VLLM_CHAT.index(b"\xf0\x9f") - 2
        for a, b in itertools.combinations(range(start, start + 8), 2):
            assert decode(OpenAiDialect(), [VLLM_CHAT[:a], VLLM_CHAT[a:b], VLLM_CHAT[b:]]) == whole

    def test_a_connection_that_breaks_loses_the_torn_event_and_the_finish(self) -> None:
        torn = VLLM_CHAT[: VLLM_CHAT.index(b'"finish_reason":"length"') + 10]
        assert decode(OpenAiDialect(), [torn]) == [EMPTY, TokenDelta("Grüß", (11, 12))]
