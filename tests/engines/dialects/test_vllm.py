"""vLLM's dialect: requests against its schema, and token counts of fake and recorded streams."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from bakeoff.engines.dialects import (
    EmptyChunk,
    Event,
    Finish,
    HttpRequest,
    ReferenceDialect,
    SseParser,
    StreamFault,
    TokenDelta,
    Usage,
    VllmDialect,
)
from bakeoff.harness.client import decode_stream
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import warning
from bakeoff.results.records import Load, Outcome, RequestRecord, TokenSource, Window
from bakeoff.workloads import Message, Turn
from tests.harness.samples import stream

SPECS = Path(__file__).parents[3].parent / "shared/protocols/specs"
SCHEMA = SPECS / "vllm-0.32.0-openapi.json"
CHAT = Turn(31, 4, messages=(Message("user", "Hi"),))
COMPLETION = Turn(5, 6, prompt="The capital of France is")
OBJECT = '{"type":"object"}'
published = pytest.mark.skipif(not SCHEMA.is_file(), reason="the published recordings are not here")


def body(turn: Turn, *, logprobs: bool = False) -> dict[str, Any]:
    return json.loads(VllmDialect().request(turn, "smol", logprobs=logprobs).body)


def read(payload: bytes) -> list[Event]:
    reader = VllmDialect().reader()
    return [event for data in SseParser().feed(payload) for event in reader.events(data)]


def recorded(name: str) -> tuple[int, bytes]:
    """Status and body of one recording."""
    _, _, answer = (SPECS / "captures" / name).read_bytes().partition(b"HTTP ")
    head, _, content = answer.partition(b"\n\n")
    return int(head.split(b"\n")[0]), content


def ids(events: Sequence[Event]) -> list[int]:
    return [token_id for event in events if isinstance(event, TokenDelta) for token_id in event.token_ids or ()]


def text(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TokenDelta))


# Requests.


def test_length_and_ids_are_forced_and_nothing_is_left_to_the_models_generation_config() -> None:
    """Bias 2: without the server's --generation-config vllm, its penalty would still change greedy decoding."""
    assert body(CHAT) == {
        "model": "smol",
        "stream": True,
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Hi"}],
    }
    completion = body(COMPLETION)
    assert completion.pop("prompt") == "The capital of France is"
    assert (completion["max_tokens"], completion["min_tokens"]) == (6, 6)
    assert VllmDialect().exact_length


@pytest.mark.parametrize("turn", [CHAT, COMPLETION])
def test_a_schema_ends_the_answer_so_its_length_is_not_forced(turn: Turn) -> None:
    free, held = body(turn), body(msgspec.structs.replace(turn, json_schema=OBJECT))
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
    assert held.pop("response_format") == {"type": "json_schema", "json_schema": schema}
    assert {**held, "ignore_eos": True, "min_tokens": turn.output_tokens} == free


def test_requests_to_the_reference_engine_differ_only_where_it_has_no_defaults() -> None:
    reference_body = json.loads(ReferenceDialect().request(CHAT, "smol").body)
    assert {**reference_body, "repetition_penalty": 1.0} == body(CHAT)


@published
@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("json_schema", [None, OBJECT])
@pytest.mark.parametrize(("turn", "schema"), [(CHAT, "ChatCompletionRequest"), (COMPLETION, "CompletionRequest")])
def test_every_body_is_one_that_the_servers_schema_knows(
    turn: Turn, schema: str, json_schema: str | None, logprobs: bool
) -> None:
    """The server ignores unknown fields, so only a strict schema finds misspelt ones."""
    spec = json.loads(SCHEMA.read_bytes())
    asked = body(msgspec.structs.replace(turn, json_schema=json_schema), logprobs=logprobs)
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{schema}", **spec}).validate(asked)
    assert set(asked) <= set(spec["components"]["schemas"][schema]["properties"])


@published
@pytest.mark.parametrize("turn", [CHAT, COMPLETION])
def test_the_paths_are_the_servers(turn: Turn) -> None:
    asked: HttpRequest = VllmDialect().request(turn, "smol")
    assert "post" in json.loads(SCHEMA.read_bytes())["paths"][asked.path]


# Answers.


@published
@pytest.mark.parametrize(
    ("name", "answer", "expected", "usage"),
    [
        ("vllm_chat_stream", "Hello! How can", [19556, 17, 1073, 416], Usage(31, 4, 0)),
        ("vllm_completion_stream_ids_usage", " Paris.\n\nThe answer", [7042, 30, 198, 198, 504, 2988], Usage(5, 6, 0)),
        ("vllm_completion_stream_interval4", " Paris.\n\nThe answer is: 2",
         [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34], Usage(5, 10, 0)),
        ("vllm_spec_stream", " c" + " d a b c" * 5 + " d a b", [265, *[287, 253, 278, 265] * 5, 287, 253, 278],
         Usage(18, 24, 0)),
    ],
)  # fmt: skip
def test_recorded_streams_are_read_to_the_token(name: str, answer: str, expected: list[int], usage: Usage) -> None:
    status, content = recorded(f"{name}.http")
    events = read(content)
    assert status == 200
    assert (text(events), ids(events)) == (answer, expected)
    assert events[-1] == usage
    assert Finish("length") in events
    assert not [event for event in events if isinstance(event, StreamFault)]


@published
def test_recorded_log_probabilities_come_one_for_each_token() -> None:
    deltas = [event for event in read(recorded("vllm_chat_stream.http")[1]) if isinstance(event, TokenDelta)]
    assert [delta.logprobs and [round(value, 3) for value in delta.logprobs] for delta in deltas] == [
        [-0.548], [-0.354, -0.09], [-0.047],
    ]  # fmt: skip


@published
def test_recorded_end_of_sequence_has_no_text_of_its_own() -> None:
    events = read(recorded("vllm_chat_stream_eos.http")[1])
    assert events[0] == EmptyChunk()
    assert events[-3:] == [EmptyChunk(), Finish("stop"), Usage(31, 17, 0)]
    assert text(events) == "Hello! How can I help you today? We can chat about something fun!"


@published
@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("vllm_err_unknown_model", 404, "The model `nope` does not exist"),
        ("vllm_err_too_long", 400, "This model's maximum context length is 2048 tokens"),
        ("vllm_err_bad_type", 400, "Input should be a valid integer"),
        ("vllm_err_overload", 503, "The engine is currently busy"),
    ],
)
def test_recorded_refusals_are_one_line(name: str, status: int, message: str) -> None:
    recorded_status, content = recorded(f"{name}.http")
    line = VllmDialect().refusal(recorded_status, content)
    assert line.startswith(f"HTTP {status}: ")
    assert message in line
    assert "\n" not in line


def chunk(answer_text: str, token_ids: list[int] | None, finish: str | None = None, **extra: object) -> bytes:
    choice = {"index": 0, "text": answer_text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    payload = {"id": "cmpl-1", "object": "text_completion", "choices": [{**choice, "token_ids": token_ids}], **extra}
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def usage_chunk(prompt: int, output: int, cached: int = 0, **extra: object) -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    data = {"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}}
    return b"data: " + json.dumps({**data, **extra}).encode() + b"\n\ndata: [DONE]\n\n"


def failure(message: str, code: int) -> bytes:
    payload = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": code}}
    return b"data: " + json.dumps(payload).encode() + b"\n\ndata: [DONE]\n\n"


# What biases a benchmark, by the numbers of the protocol file.


def test_where_the_answer_does_not_fit_the_forced_length_makes_it_a_refusal() -> None:
    """Bias 3: without min_tokens it would be cut silently. As vLLM 0.32 answered to 2,001 + 500 tokens of 2,048."""
    assert body(COMPLETION)["min_tokens"] == body(COMPLETION)["max_tokens"]
    content = b'{"error":{"message":"min_tokens must be less than or equal to max_tokens=47, got 500.","code":400}}'
    record = decode_stream(stream([(10, content)], status=400), VllmDialect(), None)
    assert record.outcome is Outcome.HTTP_ERROR
    assert record.error == "HTTP 400: min_tokens must be less than or equal to max_tokens=47, got 500."


def test_an_answer_that_was_cut_all_the_same_is_warned_of() -> None:
    """Bias 3: HTTP 200, finish reason length, and fewer tokens than requested: only the count shows it."""
    answer = chunk(" a", [7], "length") + usage_chunk(3, 1)
    record = decode_stream(stream([(10, answer)]), VllmDialect(), None)
    assert (record.outcome, record.finish_reason, record.output_tokens) == (Outcome.OK, "length", 1)
    _, findings = judge(_evidence(record))
    assert (
        warning(FindingCode.OUTPUT_LENGTH, wrong_requests=1, ok_requests=1, output_tokens=1, asked_tokens=2) in findings
    )


def _evidence(record: RequestRecord) -> Evidence:
    return Evidence([record], [], Load(concurrency=1), Window(0, 10), 0.01)


@pytest.mark.parametrize(
    ("chunks", "counts"),
    [
        ([(" d a b c", [287, 253, 278, 265]), (" d", [287])], [4, 1]),  # speculation, or --stream-interval
        ([("", [240]), ("🌍", [159])], [1, 1]),  # half a character
    ],
)
def test_tokens_are_counted_by_their_ids_and_never_by_chunks(
    chunks: list[tuple[str, list[int]]], counts: list[int]
) -> None:
    """Bias 4."""
    reads = [(10 + i, chunk(piece, token_ids)) for i, (piece, token_ids) in enumerate(chunks)]
    end = chunk("", [9], "length") + usage_chunk(3, sum(counts) + 1)
    record = decode_stream(stream([*reads, (20, end)]), VllmDialect(), None)
    assert (record.chunk_tokens, record.token_source) == ([*counts, 1], TokenSource.IDS)
    assert record.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (failure("The engine is currently busy", 503), "The engine is currently busy"),
        (chunk(" a", [7]) + failure("EngineCore encountered an issue", 500), "EngineCore encountered an issue"),
        (chunk(" a", [7], "abort") + usage_chunk(3, 1), "the server gave up the answer: its finish reason is 'abort'"),
    ],
)
def test_an_error_under_http_200_is_an_error_whatever_ends_the_stream(payload: bytes, message: str) -> None:
    """Bias 6: a full queue, an engine that died, an abort."""
    record = decode_stream(stream([(10, payload)]), VllmDialect(), None)
    assert record.outcome is Outcome.STREAM_ERROR
    assert record.error == message


def test_a_stream_that_ends_with_done_alone_is_cut_off() -> None:
    record = decode_stream(stream([(10, chunk(" a", [7]) + b"data: [DONE]\n\n")]), VllmDialect(), None)
    assert record.outcome is Outcome.TRUNCATED


def test_the_servers_own_time_of_a_request_is_not_read() -> None:
    """Bias 7: ``metrics`` counts from scheduling, without the queue; our times count from the plan."""
    metrics = {"time_to_first_token_ms": 8.1, "queue_time_ms": 5000.0, "mean_itl_ms": 4.5}
    assert read(usage_chunk(3, 2, metrics=metrics)) == [Usage(3, 2, 0)]


def test_hits_of_the_prefix_cache_are_read() -> None:
    """Bias 1: a verdict on a cold cache depends on them."""
    assert read(usage_chunk(300, 2, cached=256)) == [Usage(300, 2, 256)]


def test_keep_alive_comments_are_no_chunks() -> None:
    assert read(b": keep-alive\n\n" + chunk(" a", [7])) == [TokenDelta(" a", (7,))]
