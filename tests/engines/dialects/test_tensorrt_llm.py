"""Dialect of trtllm-serve: no unknown fields, and broken streams are failures."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import pytest

from bakeoff.engines.dialects import (
    EmptyChunk,
    Event,
    Finish,
    SseParser,
    StreamFault,
    TensorRtLlmDialect,
    TokenDelta,
    Usage,
)
from bakeoff.harness.client import decode_stream
from bakeoff.results.records import Outcome, RequestRecord, StreamEnd, TokenSource
from bakeoff.workloads import Message, Turn
from tests.engines.fakes.stage import Script, running
from tests.engines.fakes.tensorrt_llm import FIELDS, TensorRtLlmFake
from tests.harness.samples import stream

CHAT = Turn(12, 3, messages=(Message("user", "Hi"),))
COMPLETION = Turn(5, 3, prompt="Hi")
IDS_STREAM = (
    b'data: {"id":"cmpl-7","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"",'
    b'"token_ids":[71],"logprobs":null,"finish_reason":null,"stop_reason":null,"avg_decoded_tokens_per_iter":null}],'
    b'"usage":null}\n\n'
    b'data: {"id":"cmpl-7","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"",'
    b'"token_ids":[72,73],"logprobs":null,"finish_reason":"length","stop_reason":null,'
    b'"avg_decoded_tokens_per_iter":1.5}],"usage":null}\n\n'
    b'data: {"id":"cmpl-7","object":"text_completion","created":1,"model":"m","choices":[],"usage":'
    b'{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
    b"data: [DONE]\n\n"
)
CHAT_STREAM = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant"}}]} \n\n'
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" Paris","reasoning_content":""}}]}\n\n'
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" is","reasoning_content":""},"finish_reason":"length"}]}\n\n'
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":'
    b'{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
    b"data: [DONE]\n\n"
)


def body(turn: Turn, *, token_ids: bool = False, logprobs: bool = False) -> dict[str, Any]:
    return json.loads(TensorRtLlmDialect(token_ids=token_ids).request(turn, "m", logprobs=logprobs).body)


def events(whole: bytes) -> list[Event]:
    reader = TensorRtLlmDialect().reader()
    return [event for data in SseParser().feed(whole) for event in reader.events(data)]


def decoded(whole: bytes, end: StreamEnd = StreamEnd.COMPLETE) -> RequestRecord:
    return decode_stream(stream([(10, whole)], end=end), TensorRtLlmDialect(), None)


async def answers(fake: TensorRtLlmFake, bodies: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[int, bytes]]:
    """Status and body of each exchange; if the connection broke, the body received so far."""
    exchanges: list[tuple[int, bytes]] = []
    async with running(fake) as url, aiohttp.ClientSession() as session:
        for path, asked in bodies:
            async with session.post(url + path, json=asked) as answer:
                read = bytearray()
                try:
                    async for part in answer.content.iter_any():
                        read += part
                except aiohttp.ClientError:
                    read += b"<broken>"
                exchanges.append((answer.status, bytes(read)))
    return exchanges


def ask(fake: TensorRtLlmFake, turn: Turn, **options: bool) -> tuple[int, bytes]:
    path = TensorRtLlmDialect().request(turn, "m").path
    return asyncio.run(answers(fake, [(path, body(turn, **options))]))[0]


class TestRequests:
    def test_completions_force_the_length_and_are_greedy_in_both_ways(self) -> None:
        assert body(COMPLETION) == {
            "model": "m",
            "stream": True,
            "max_tokens": 3,
            "min_tokens": 3,
            "ignore_eos": True,
            "temperature": 0,
            "top_k": 1,
            "stream_options": {"include_usage": True},
            "prompt": "Hi",
        }

    def test_chat_has_the_same_fields(self) -> None:
        asked = body(CHAT)
        assert asked.pop("messages") == [{"role": "user", "content": "Hi"}]
        assert {**asked, "prompt": "Hi"} == body(COMPLETION)

    def test_ids_are_asked_of_completions_only(self) -> None:
        assert body(COMPLETION, token_ids=True)["detokenize"] is False
        assert "detokenize" not in body(CHAT, token_ids=True)
        assert "detokenize" not in body(COMPLETION)

    def test_log_probabilities_are_asked_for_with_a_number_that_is_not_none(self) -> None:
        assert body(COMPLETION, logprobs=True)["logprobs"] == 1
        assert body(CHAT, logprobs=True)["logprobs"] is True
        assert "logprobs" not in body(CHAT)

    @pytest.mark.parametrize("turn", [CHAT, COMPLETION])
    def test_a_schema_ends_the_answer_so_its_length_is_not_forced(self, turn: Turn) -> None:
        held = body(msgspec.structs.replace(turn, json_schema='{"type":"object"}'))
        assert held.pop("response_format") == {"type": "json", "schema": {"type": "object"}}
        assert {**held, "ignore_eos": True, "min_tokens": turn.output_tokens} == body(turn)

    @pytest.mark.parametrize("turn", [CHAT, COMPLETION])
    @pytest.mark.parametrize("token_ids", [False, True])
    def test_only_fields_that_the_server_knows_are_sent(self, turn: Turn, *, token_ids: bool) -> None:
        held = Turn(9, 3, turn.messages, turn.prompt, json_schema='{"type":"object"}')
        fields = FIELDS["chat" if turn.messages else "completions"]
        assert set(body(held, token_ids=token_ids, logprobs=True)) <= fields
        assert ask(TensorRtLlmFake(), held, token_ids=token_ids, logprobs=True)[0] == 200

    def test_a_field_too_many_is_refused_and_the_refusal_is_told(self) -> None:
        fake = TensorRtLlmFake()
        asked = {**body(COMPLETION), "return_token_ids": True}
        ((status, content),) = asyncio.run(answers(fake, [("/v1/completions", asked)]))
        assert status == 400
        refusal = TensorRtLlmDialect().refusal(status, content)
        assert refusal.startswith("HTTP 400: [{'type': 'extra_forbidden'")
        assert "return_token_ids" in refusal
        assert not fake.bodies


class TestStreams:
    def test_ids_without_text(self) -> None:
        assert events(IDS_STREAM) == [
            TokenDelta("", (71,)),
            TokenDelta("", (72, 73)),
            Usage(5, 3, 2),
            Finish("length"),
        ]
        record = decoded(IDS_STREAM)
        assert (record.outcome, record.chunk_tokens, record.token_source) == (Outcome.OK, [1, 2], TokenSource.IDS)
        assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (5, 3, 2)

    def test_a_role_is_no_token_and_the_blank_behind_its_data_no_garbage(self) -> None:
        assert events(CHAT_STREAM) == [
            EmptyChunk(),
            TokenDelta(" Paris"),
            TokenDelta(" is"),
            Usage(1, 2, 0),
            Finish("length"),
        ]

    def test_the_fake_sends_the_same_bytes(self) -> None:
        assert ask(TensorRtLlmFake(), Turn(1, 2, messages=CHAT.messages)) == (200, CHAT_STREAM)
        fake = TensorRtLlmFake(Script(group=2))
        status, content = ask(fake, COMPLETION, token_ids=True)
        ids = IDS_STREAM.replace(b"cmpl-7", b"cmpl-1").replace(b"[71]", b"[100,101]").replace(b"[72,73]", b"[102]")
        ids = ids.replace(b'"prompt_tokens":5,"total_tokens":8', b'"prompt_tokens":1,"total_tokens":4')
        assert (status, content) == (200, ids.replace(b'"cached_tokens":2', b'"cached_tokens":0'))

    def test_several_tokens_in_a_chunk_are_counted_by_the_usage(self) -> None:
        _, content = ask(TensorRtLlmFake(Script(group=2)), Turn(1, 5, prompt="Hi"))
        record = decoded(content)
        assert (len(record.chunk_tokens), sum(record.chunk_tokens), record.output_tokens) == (3, 5, 5)
        assert record.token_source is TokenSource.APPORTIONED

    @pytest.mark.parametrize("turn", [CHAT, COMPLETION])
    def test_log_probabilities_come_with_their_tokens(self, turn: Turn) -> None:
        _, content = ask(TensorRtLlmFake(), turn, logprobs=True)
        logprobs = [event.logprobs for event in events(content) if isinstance(event, TokenDelta)]
        assert logprobs == [(-0.5,)] * 3

    def test_the_server_does_not_stop_before_the_wanted_length(self) -> None:
        record = decoded(ask(TensorRtLlmFake(Script(natural_length=2)), Turn(1, 6, prompt="Hi"))[1])
        assert (record.output_tokens, record.finish_reason) == (6, "length")


class TestEnds:
    def test_a_connection_that_breaks_is_a_stream_error_even_behind_the_finish_reason(self) -> None:
        for fault in ("break", "break-at-end"):
            status, content = ask(TensorRtLlmFake(faults=[fault]), COMPLETION)
            assert status == 200
            assert content.endswith(b"<broken>"), "no error event, no end mark"
            record = decoded(content.removesuffix(b"<broken>"), end=StreamEnd.RESET)
            assert (record.outcome, record.finish_reason) == (Outcome.STREAM_ERROR, None)

    def test_a_finish_reason_without_the_end_mark_is_no_end(self) -> None:
        """An exception after the last token, or a proxy that closes the connection normally."""
        _, content = ask(TensorRtLlmFake(faults=["no-done"]), COMPLETION)
        assert b'"finish_reason":"length"' in content
        record = decoded(content)
        assert (record.outcome, record.finish_reason) == (Outcome.TRUNCATED, None)
        assert len(record.chunk_ns) == 3, "what was felt stays"

    def test_the_end_mark_without_a_finish_reason_is_none_either(self) -> None:
        first = IDS_STREAM.split(b"\n\n")[0] + b"\n\n"
        assert decoded(first + b"data: [DONE]\n\n").outcome is Outcome.TRUNCATED

    def test_each_answer_is_read_by_itself(self) -> None:
        dialect = TensorRtLlmDialect()
        cut, whole = dialect.reader(), dialect.reader()
        for data in SseParser().feed(IDS_STREAM)[:-1]:
            cut.events(data)
        assert whole.events(b"[DONE]") == []
        assert cut.events(b"[DONE]") == [Finish("length")]

    def test_an_answer_that_the_server_gave_up_is_a_failure(self) -> None:
        _, content = ask(TensorRtLlmFake(faults=["gives-up"]), COMPLETION)
        record = decoded(content)
        assert record.outcome is Outcome.STREAM_ERROR
        assert record.error == "the server gave up the answer: its finish reason is 'timeout'"

    def test_garbage_and_errors_in_the_stream_are_faults(self) -> None:
        assert events(b'data: {"object":"error","message":"no","code":500}\n\n') == [StreamFault("no")]
        (fault,) = events(b"data: {\n\n")
        assert isinstance(fault, StreamFault)

    @pytest.mark.parametrize(("fault", "status"), [("too-long", 400), ("unsupported", 501)])
    def test_flat_errors_are_told_in_one_line(self, fault: str, status: int) -> None:
        answer_status, content = ask(TensorRtLlmFake(faults=[fault]), COMPLETION)
        assert (answer_status, "error" in json.loads(content)) == (status, False)
        assert TensorRtLlmDialect().refusal(answer_status, content) == f"HTTP {status}: it is {fault}"
