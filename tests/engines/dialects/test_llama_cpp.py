"""llama.cpp's dialects: exact requests, and token counts of synthetic and recorded streams."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import (
    Dialect,
    EmptyChunk,
    Event,
    Finish,
    LlamaCppDialect,
    LlamaCppNativeDialect,
    LlamaCppPythonDialect,
    SseParser,
    StreamFault,
    TokenDelta,
    Usage,
    holds_to_schema,
)
from bakeoff.harness.client.decode.ledger import ledger_of
from bakeoff.harness.client.wire.stream_content import DecodedStream
from bakeoff.results.records import TokenSource
from bakeoff.workloads import Message, Turn
from tests.engines.schema import body_problems, load_spec

CAPTURES = Path(__file__).parents[3].parent / "shared/protocols/specs/captures"
CHAT = Turn(31, 4, messages=(Message("user", "Hi"),))
COMPLETION = Turn(5, 6, prompt="The capital of France is")
EMPTY = EmptyChunk()
OBJECT = {"type": "object"}
WRAPPED = {"name": "answer", "schema": OBJECT, "strict": True}
NATIVE, OPENAI, PYTHON = LlamaCppNativeDialect(), LlamaCppDialect(), LlamaCppPythonDialect()
VERBOSE = {"verbose": True, "return_tokens": True}
published = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the published recordings are not here")


def body(dialect: Dialect, turn: Turn, *, logprobs: bool = False) -> dict[str, Any]:
    return json.loads(dialect.request(turn, "smol", logprobs=logprobs).body)


def read(dialect: Dialect, *payloads: object) -> list[Event]:
    reader = dialect.reader()
    return [event for payload in payloads for event in reader.events(json.dumps(payload).encode())]


def recorded(dialect: Dialect, name: str) -> list[Event]:
    """The events of one recording."""
    _, _, answer = (CAPTURES / name).read_bytes().partition(b"HTTP 200")
    reader, parser = dialect.reader(), SseParser()
    return [event for data in parser.feed(answer.partition(b"\n\n")[2]) for event in reader.events(data)]


def native(text: str, ids: list[int], total: int, **more: object) -> dict[str, object]:
    counts = {"tokens_predicted": total, "tokens_evaluated": 5}
    return {"index": 0, "content": text, "tokens": ids, "stop": False, "id_slot": -1, **counts, **more}


def last(total: int, stop_type: str = "limit", **more: object) -> dict[str, object]:
    end = {"stop_type": stop_type, "truncated": False, "timings": {"cache_n": 2, "prompt_n": 3, "predicted_n": total}}
    return native("", [], total, **{**end, "stop": True, **more})


def chunk(text: str, **more: object) -> dict[str, object]:
    return {"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": None}], **more}


def delta(text: str, **more: object) -> dict[str, object]:
    return {"choices": [{"finish_reason": None, "index": 0, "delta": {"content": text}}], **more}


class TestRequests:
    def test_a_completion_goes_to_its_own_route_greedily_with_forced_length_and_ids(self) -> None:
        """By default the temperature is 0.8 and the length unbounded; the model's name is not checked.

        It is always a stream: without one, an answer runs to its end even if nobody waits for it.
        """
        request = NATIVE.request(COMPLETION, "smol")
        assert request.path == "/completion"
        assert json.loads(request.body) == {
            "prompt": "The capital of France is",
            "stream": True,
            "n_predict": 6,
            "ignore_eos": True,
            "temperature": 0,
            "repeat_penalty": 1.0,
            "return_tokens": True,
        }

    @pytest.mark.parametrize("dialect", [NATIVE, OPENAI])
    def test_a_chat_goes_by_the_openai_route(self, dialect: Dialect) -> None:
        assert dialect.request(CHAT, "smol").path == "/v1/chat/completions"
        assert body(dialect, CHAT) == {
            "model": "smol",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "max_tokens": 4,
            "ignore_eos": True,
            "temperature": 0,
            "repeat_penalty": 1.0,
            "stream_options": {"include_usage": True},
        }

    def test_the_openai_routes_take_completions_without_ids_unless_asked(self) -> None:
        assert OPENAI.request(COMPLETION, "smol").path == "/v1/completions"
        assert body(OPENAI, COMPLETION)["ignore_eos"]
        assert not set(VERBOSE) & set(body(OPENAI, COMPLETION))
        asked = LlamaCppDialect(token_ids=True)
        assert VERBOSE.items() <= body(asked, COMPLETION).items()
        assert not set(VERBOSE) & set(body(asked, CHAT)), "chats have no ids, whatever one asks"

    def test_each_request_has_a_connection_of_its_own(self) -> None:
        """The server closes it after a stream, contrary to its headers: the next request would be lost."""
        for dialect in (NATIVE, OPENAI):
            for turn in (CHAT, COMPLETION):
                headers = dialect.request(turn, "smol").headers
                assert headers["connection"] == "close"
                assert headers["accept"] == "text/event-stream"
        assert "connection" not in PYTHON.request(CHAT, "smol").headers

    @pytest.mark.parametrize("wanted", [True, False])
    def test_whether_the_prompt_may_be_found_in_the_cache_is_said_where_it_is_known(self, *, wanted: bool) -> None:
        for dialect in (LlamaCppNativeDialect(cache_prompt=wanted), LlamaCppDialect(cache_prompt=wanted)):
            for turn in (CHAT, COMPLETION):
                assert body(dialect, turn)["cache_prompt"] is wanted
        assert "cache_prompt" not in body(NATIVE, COMPLETION)

    def test_log_probabilities_are_of_the_chosen_token_only(self) -> None:
        """By default, each chunk of a chat has twenty of them."""
        assert body(NATIVE, COMPLETION, logprobs=True)["n_probs"] == 1
        assert {"logprobs": 1, **VERBOSE}.items() <= body(OPENAI, COMPLETION, logprobs=True).items()
        wanted = {"logprobs": True, "top_logprobs": 1, "timings_per_token": True}
        assert wanted.items() <= body(OPENAI, CHAT, logprobs=True).items()

    @pytest.mark.parametrize("turn", [CHAT, COMPLETION])
    def test_llama_cpp_python_forces_the_length_by_min_tokens_and_no_penalty(self, turn: Turn) -> None:
        """It penalises repetitions by default, even in greedy decoding."""
        request_body = body(PYTHON, turn)
        wanted = turn.output_tokens
        assert (request_body["max_tokens"], request_body["min_tokens"], request_body["temperature"]) == (
            wanted,
            wanted,
            0,
        )
        assert request_body["repeat_penalty"] == 1.0
        assert not {"ignore_eos", "stream_options"} & set(request_body), "these it would ignore"
        assert "min_tokens" not in body(PYTHON, msgspec.structs.replace(turn, tools="[]")), "a call ends by itself"

    @pytest.mark.parametrize("turn", [CHAT, COMPLETION])
    @pytest.mark.parametrize("logprobs", [False, True])
    def test_llama_cpp_pythons_bodies_keep_to_its_schema(self, turn: Turn, *, logprobs: bool) -> None:
        spec = load_spec("llama-cpp-python-0.3.36-openapi.json")
        request = LlamaCppPythonDialect(logprobs=True).request(turn, "smol", logprobs=logprobs)
        assert body_problems(spec, request.path, request.body) == []

    def test_llama_cpp_python_is_asked_for_log_probabilities_only_where_it_keeps_logits(self) -> None:
        assert "logprobs" not in body(PYTHON, COMPLETION, logprobs=True)
        assert body(LlamaCppPythonDialect(logprobs=True), CHAT, logprobs=True)["logprobs"] is True

    @pytest.mark.parametrize(
        ("dialect", "turn", "spelling"),
        [
            (OPENAI, CHAT, {"response_format": {"type": "json_schema", "json_schema": WRAPPED}}),
            (NATIVE, CHAT, {"response_format": {"type": "json_schema", "json_schema": WRAPPED}}),
            (OPENAI, COMPLETION, {"json_schema": OBJECT}),
            (NATIVE, COMPLETION, {"json_schema": OBJECT}),
            (PYTHON, CHAT, {"response_format": {"type": "json_object", "schema": OBJECT}}),
        ],
    )
    def test_a_schema_ends_the_answer_so_its_length_is_not_forced(
        self, dialect: Dialect, turn: Turn, spelling: dict[str, Any]
    ) -> None:
        free, held = body(dialect, turn), body(dialect, msgspec.structs.replace(turn, json_schema='{"type":"object"}'))
        forced = {"ignore_eos": free.get("ignore_eos"), "min_tokens": free.get("min_tokens")}
        assert {name: held.pop(name) for name in spelling} == spelling
        assert {**held, **{name: value for name, value in forced.items() if value}} == free

    def test_a_completion_of_llama_cpp_python_cannot_be_held_to_a_schema(self) -> None:
        """It supports grammars only, so the request stays the same, which :func:`holds_to_schema` detects."""
        held = msgspec.structs.replace(COMPLETION, json_schema='{"type":"object"}')
        assert body(PYTHON, held) == body(PYTHON, COMPLETION)
        assert not holds_to_schema(PYTHON.request, held)

    def test_llama_cpp_pythons_spelling_is_in_its_published_schema(self) -> None:
        spec = load_spec("llama-cpp-python-0.3.36-openapi.json")
        request = PYTHON.request(msgspec.structs.replace(CHAT, json_schema='{"type":"object"}'), "smol")
        assert body_problems(spec, request.path, request.body) == []


class TestNativeStream:
    def test_tokens_then_an_end_without_done(self) -> None:
        events = read(NATIVE, native(" Par", [71], 1), native("is", [72], 2), last(2))
        assert events == [
            TokenDelta(" Par", (71,)), TokenDelta("is", (72,)),
            Finish("length"), Usage(5, 2, 2, in_choice=True),
        ]  # fmt: skip

    @pytest.mark.parametrize(("stop_type", "reason"), [("limit", "length"), ("eos", "stop"), ("word", "stop")])
    def test_why_it_ended_has_its_usual_name(self, stop_type: str, reason: str) -> None:
        assert Finish(reason) in read(NATIVE, last(0, stop_type))

    def test_a_context_that_is_full_is_a_failure_though_it_says_limit(self) -> None:
        """It is reported with HTTP 200 and fewer tokens than requested."""
        events = read(NATIVE, native("a", [7], 1), last(1, truncated=True))
        assert not [event for event in events if isinstance(event, Finish)]
        (fault,) = [event for event in events if isinstance(event, StreamFault)]
        assert fault.message == "the slot's context is full, so the answer was cut off; raise max_model_len"

    def test_progress_is_no_token_though_it_has_an_id(self) -> None:
        progress = {"prompt_progress": {"total": 5, "cache": 0, "processed": 5, "time_ms": 1}}
        assert read(NATIVE, native("", [0], 0, **progress)) == [EMPTY]
        assert read(OPENAI, delta("", **progress)) == [EMPTY]
        verbose = {"__verbose": native("", [0], 0, **progress)}
        assert read(OPENAI, chunk("", **progress, **verbose)) == [EMPTY]

    def test_the_pieces_of_a_character_are_counted_though_only_the_last_ones_id_is_told(self) -> None:
        """Three tokens make one flag: the id of the third alone would count as one token."""
        events = read(NATIVE, native(" a", [9], 1), native("🇫", [121], 4), native("b", [10], 5), last(5))
        assert events[:3] == [TokenDelta(" a", (9,)), TokenDelta("🇫", tokens=3), TokenDelta("b", (10,))]
        assert events[-1] == Usage(5, 5, 2, in_choice=True)

    def test_an_incomplete_character_at_the_end_is_a_token(self) -> None:
        assert read(NATIVE, native("a", [9], 1), last(2))[:2] == [TokenDelta("a", (9,)), TokenDelta("", tokens=1)]

    def test_a_token_without_text_is_a_token(self) -> None:
        assert read(NATIVE, native("", [1], 1)) == [TokenDelta("", (1,))]
        assert read(NATIVE, native("", [], 0)) == [EMPTY]

    def test_accepted_drafts_are_single_tokens_however_fast_they_come(self) -> None:
        burst = [native(" c", [265 + i], 1 + i) for i in range(4)]
        assert read(NATIVE, *burst) == [TokenDelta(" c", (265 + i,)) for i in range(4)]

    def test_log_probabilities_come_with_their_token_and_not_with_pieces(self) -> None:
        def probability(value: float) -> dict[str, object]:
            return {"completion_probabilities": [{"id": 9, "token": " a", "logprob": value, "top_logprobs": []}]}

        events = read(NATIVE, native(" a", [9], 1, **probability(-0.5)), native("🇫", [121], 4, **probability(-0.25)))
        assert events == [TokenDelta(" a", (9,), (-0.5,)), TokenDelta("🇫", tokens=3)]

    def test_a_server_that_sends_no_ids_is_read_too(self) -> None:
        assert read(NATIVE, native(" a", [], 1)) == [TokenDelta(" a", tokens=1)]

    def test_an_error_in_the_stream_is_told_in_its_words(self) -> None:
        error = {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}
        assert read(NATIVE, error) == read(OPENAI, error) == [StreamFault("Compute error.")]

    def test_each_answer_is_counted_from_its_own_beginning(self) -> None:
        for _ in range(2):
            assert read(NATIVE, native(" a", [9], 1)) == [TokenDelta(" a", (9,))]


class TestOpenAiStream:
    def test_a_chats_role_is_no_token_and_counts_beside_the_last_chunk_make_none(self) -> None:
        usage = {"prompt_tokens": 31, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
        ended = {"choices": [{"finish_reason": "length", "index": 0, "delta": {}}]}
        role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]}
        whole = {"choices": [], "usage": usage, "timings": {"cache_n": 0, "predicted_n": 2}}
        assert read(OPENAI, role, delta("He"), delta("llo"), ended, whole) == [
            EMPTY, TokenDelta("He"), TokenDelta("llo"), EMPTY, Finish("length"), Usage(31, 2, 0),
        ]  # fmt: skip
        assert read(OPENAI, delta("He"), {**ended, "timings": {"predicted_n": 1}})[1:] == [EMPTY, Finish("length")]

    def test_ids_that_were_asked_for_come_in_the_native_event(self) -> None:
        verbose = [{"__verbose": native(text, ids, total)} for text, ids, total in (("a", [7], 1), ("🇫", [9], 4))]
        events = read(OPENAI, chunk("a", **verbose[0]), chunk("🇫", **verbose[1]))
        assert events == [TokenDelta("a", (7,)), TokenDelta("🇫", tokens=3)]
        special = {"__verbose": native("", [1], 1)}
        assert read(OPENAI, chunk("", **special)) == [TokenDelta("", (1,))]

    def test_a_cut_off_answer_is_a_failure_where_the_native_event_says_so(self) -> None:
        ended = {"choices": [{"text": "", "index": 0, "finish_reason": "length"}], "__verbose": last(1, truncated=True)}
        assert [type(event) for event in read(OPENAI, ended)] == [EmptyChunk, StreamFault]

    def test_ids_of_a_chats_log_probabilities_hold_where_counts_confirm_them(self) -> None:
        def chat_chunk(text: str, token: int, total: int) -> dict[str, object]:
            logprobs = {"content": [{"id": token, "token": text, "logprob": -0.5}]}
            choice = {"finish_reason": None, "index": 0, "delta": {"content": text}, "logprobs": logprobs}
            return {"choices": [choice], "timings": {"predicted_n": total}}

        events = read(OPENAI, chat_chunk("Hi", 7, 1), chat_chunk(" 🦙", 243, 4), chat_chunk("!", 9, 5))
        assert events == [TokenDelta("Hi", (7,), (-0.5,)), TokenDelta(" 🦙", tokens=3), TokenDelta("!", (9,), (-0.5,))]

    @given(st.dictionaries(st.sampled_from(["content", "stop", "tokens", "choices", "timings", "__verbose", "error",
                                            "completion_probabilities", "prompt_progress", "tokens_predicted"]),
                           st.none() | st.booleans() | st.integers() | st.text(max_size=3)
                           | st.lists(st.integers() | st.none(), max_size=2)))  # fmt: skip
    def test_invalid_data_is_an_event_not_an_exception(self, payload: dict[str, object]) -> None:
        for dialect in (NATIVE, OPENAI, PYTHON):
            data = json.dumps(payload).encode()
            assert isinstance(dialect.reader().events(data), list)
            assert isinstance(dialect.reader().events(data[:-1] + b"\xff"), list)


def test_refusals_are_told_in_the_servers_words() -> None:
    answer = b'{"error":{"code":400,"message":"request (1500 tokens) exceeds the available context size (1024 tokens)",'
    answer += b'"type":"exceed_context_size_error","n_prompt_tokens":1500,"n_ctx":1024}}'
    refusal = NATIVE.refusal(400, answer)
    assert refusal == "HTTP 400: request (1500 tokens) exceeds the available context size (1024 tokens)"
    failed = b'{"error":{"message":"3 validation errors:\\n  {}","type":"internal_server_error","code":null}}'
    assert PYTHON.refusal(500, failed) == "HTTP 500: 3 validation errors: {}"


@published
class TestRecordings:
    def test_a_native_stream_with_progress_and_timings(self) -> None:
        events = recorded(NATIVE, "llama_server_completion_stream.http")
        assert events == [
            EMPTY, EMPTY, TokenDelta(" Paris", (7042,)), TokenDelta(".", (30,)), TokenDelta("\n", (198,)),
            TokenDelta("\n", (198,)), Finish("length"), Usage(5, 4, 0, in_choice=True),
        ]  # fmt: skip

    def test_a_speculative_stream(self) -> None:
        events = recorded(NATIVE, "llama_server_spec_stream.http")
        ids = [event.token_ids for event in events if isinstance(event, TokenDelta)]
        cycle = [(265,), (287,), (253,), (278,)]
        assert ids == cycle * 6
        assert events[-2:] == [Finish("length"), Usage(18, 24, 0, in_choice=True)]

    def test_an_answer_that_ran_out_of_context(self) -> None:
        events = recorded(NATIVE, "llama_server_truncated.http")
        assert sum(isinstance(event, TokenDelta) for event in events) == 6
        assert isinstance(events[-2], StreamFault)
        assert events[-1] == Usage(1018, 6, 0, in_choice=True)

    def test_the_openai_routes(self) -> None:
        text = [TokenDelta(" Paris"), TokenDelta("."), TokenDelta("\n"), TokenDelta("\n")]
        end = [EMPTY, Finish("length"), Usage(5, 4, 0, in_choice=True)]
        assert recorded(OPENAI, "llama_server_v1_completion_stream.http") == [*text, *end]
        assert recorded(OPENAI, "llama_server_chat_stream.http") == [
            EMPTY, TokenDelta("Hello"), TokenDelta("!"), TokenDelta(" How"), TokenDelta(" can"), EMPTY,
            Finish("length"), Usage(31, 4, 0),
        ]  # fmt: skip

    def test_the_openai_route_with_ids(self) -> None:
        assert recorded(OPENAI, "llama_server_v1_completion_stream_verbose.http") == [
            TokenDelta(" Paris", (7042,)), TokenDelta(".", (30,)), TokenDelta("\n", (198,)), EMPTY,
            Finish("length"), Usage(5, 3, 0, in_choice=True),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "texts"),
        [("chat_stream", ["Hello", "!", " How", " can"]), ("completion_stream", [" Paris", ".", "\n", "-"])],
    )
    def test_llama_cpp_python_counts_by_its_chunks(self, name: str, texts: list[str]) -> None:
        """The last chunk is empty; without usage, each text counts as a token unless the tokenizer disagrees."""
        events = recorded(PYTHON, f"llama_cpp_python_{name}.http")
        deltas = [event for event in events if isinstance(event, TokenDelta)]
        assert [delta.text for delta in deltas] == texts
        assert events[-2:] == [EMPTY, Finish("length")]
        ledger = ledger_of(DecodedStream(deltas=list(enumerate(deltas))), None, None)
        assert (ledger.counts, ledger.source) == ([1, 1, 1, 1], TokenSource.ASSUMED)

    def test_llama_cpp_python_says_nothing_of_a_prompt_that_is_too_long(self) -> None:
        """HTTP 200 and an empty body: there is no finish reason, which the harness calls truncated."""
        assert recorded(PYTHON, "llama_cpp_python_err_too_long_stream.http") == []

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("llama_server_err_context.http", "HTTP 400: request (1500 tokens) exceeds the available context size"),
            ("llama_server_err_bad_type.http", "HTTP 400: "),
            ("llama_cpp_python_err_token_ids.http", "HTTP 500: 3 validation errors: {'type': 'string_type'"),
        ],
    )
    def test_errors(self, name: str, message: str) -> None:
        _, _, answer = (CAPTURES / name).read_bytes().partition(b"HTTP ")
        head, _, content = answer.partition(b"\n\n")
        assert NATIVE.refusal(int(head[:3]), content).startswith(message)
