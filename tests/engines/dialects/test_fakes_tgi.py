"""The fake of TGI against TGI's published schema and known behaviour."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from bakeoff.engines.dialects import SseParser
from tests.engines.fakes.stage import Script, running
from tests.engines.fakes.tgi import FakeTgi
from tests.engines.fakes.tgi_flags import arguments, resolved
from tests.engines.schema import load_spec, problems

ENDS = FakeTgi(Script(natural_length=3))


def flags(*words: str) -> Any:
    return resolved(arguments().parse_args(["--model-id", "m", *words]))


def asked(path: str, body: object, fake: FakeTgi, **headers: str) -> tuple[int, str, bytes]:
    """Status, content type and body of one exchange."""

    async def ask() -> tuple[int, str, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **headers}
        async with (
            running(fake) as url,
            aiohttp.ClientSession() as session,
            session.post(url + path, data=data, headers=given) as answer,
        ):
            return answer.status, answer.content_type, await answer.read()

    return asyncio.run(ask())


def streamed(path: str, body: object, fake: FakeTgi = ENDS) -> list[Any]:
    status, kind, answer = asked(path, body, fake)
    assert (status, kind) == (200, "text/event-stream")
    return [data if data == b"[DONE]" else json.loads(data) for data in SseParser().feed(answer)]


def native(**parameters: object) -> dict[str, object]:
    return {"inputs": "The capital", "parameters": {"details": True, "max_new_tokens": 5, **parameters}}


@pytest.mark.parametrize(
    ("path", "body", "schema"),
    [
        ("/generate_stream", native(), "StreamResponse"),
        ("/", {**native(), "stream": True}, "StreamResponse"),
        ("/v1/completions", {"prompt": ["The capital"], "max_tokens": 5, "stream": True}, "Completion"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True,
         "logprobs": True, "stream_options": {"include_usage": True}}, "ChatCompletionChunk"),
    ],
)  # fmt: skip
def test_every_event_keeps_to_the_published_schema(path: str, body: object, schema: str) -> None:
    spec = load_spec("tgi-openapi.json")
    events = [event for event in streamed(path, body) if event != b"[DONE]"]
    assert len(events) >= 3
    for event in events:
        if schema == "ChatCompletionChunk":
            assert event.pop("object") == "chat.completion.chunk"  # the tag of the union that contains it
        assert problems(event, spec["components"]["schemas"][schema], spec) == []


def test_the_native_stream_ends_with_its_whole_text_and_without_a_mark() -> None:
    *before, last = streamed("/generate_stream", native())
    assert [event["index"] for event in (*before, last)] == [1, 2, 3]
    assert {event["generated_text"] for event in before} == {None}
    assert (last["token"]["special"], last["generated_text"]) == (True, " Paris is")
    assert last["details"] == {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None, "input_length": 2}


def test_the_openai_routes_end_with_a_mark() -> None:
    completion = streamed("/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True})
    assert completion[-1] == b"[DONE]"
    assert [event["choices"][0]["finish_reason"] for event in completion[:-1]] == ["", "length"]
    chat = streamed("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True})
    assert chat[-1] == b"[DONE]"
    assert chat[-2]["choices"][0] == {
        "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "words", "kind"),
    [
        (native(temperature=0), "`temperature` must be strictly positive", "validation"),
        (native(max_new_tokens=0), "`max_new_tokens` must be strictly positive", "validation"),
        (native(max_new_tokens=5000), "`inputs` tokens + `max_new_tokens` must be <= 100. Given: 2", "validation"),
        (native(decoder_input_details=True), "not supported when streaming tokens", "validation"),
    ],
)
def test_what_is_wrong_is_told_in_a_stream_of_status_200(body: object, words: str, kind: str) -> None:
    (event,) = streamed(
        "/generate_stream", body, FakeTgi(flags=flags("--max-input-tokens", "9", "--max-total-tokens", "100"))
    )
    assert words in event["error"]
    assert event["error_type"] == kind


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        ({"prompt": "x"}, {}, 422),
        (native(), {"content-type": "text/plain"}, 415),
        (native(), {"authorization": "Bearer wrong"}, 401),
    ],
)
def test_the_web_frameworks_own_refusals_are_no_json(body: object, headers: dict[str, str], status: int) -> None:
    key = "right" if status == 401 else None
    answer_status, _, answer = asked("/generate_stream", body, FakeTgi(key=key), **headers)
    assert answer_status == status
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_openai_routes_wrap_their_errors_and_end_with_a_mark(path: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "stream": True}
    events = streamed(path, body, FakeTgi(flags=flags("--max-concurrent-requests", "0")))
    assert events == [{"error": {"message": "Model is overloaded", "http_status_code": 429}}, b"[DONE]"]


def test_flags_have_their_variables_and_contradictions_end_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_TOTAL_TOKENS", "77")
    assert flags("--max-input-tokens", "70").max_total_tokens == 77
    with pytest.raises(SystemExit, match="max_input_tokens must be <"):
        flags("--max-input-tokens", "77")
    with pytest.raises(SystemExit, match="cannot be used with"):
        flags("--max-input-tokens", "70", "--dtype", "float16", "--quantize", "awq")
