"""Triton's dialect: no token counts, end by closing, errors under HTTP 200."""

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest

from bakeoff.engines.dialects import (
    EmptyChunk,
    Event,
    Finish,
    OpenAiDialect,
    SseParser,
    StreamFault,
    TokenDelta,
    TritonDialect,
)
from bakeoff.engines.dialects.triton import Fields
from bakeoff.engines.errors import BadOption
from bakeoff.harness.client import decode_stream
from bakeoff.results.records import Outcome, RequestRecord, StreamEnd, TokenSource
from bakeoff.workloads import Message, Turn
from tests.engines.fakes.stage import Script, running
from tests.engines.fakes.triton import TritonFake
from tests.harness.samples import stream

TURN = Turn(4, 3, prompt="Where is it?")
MODELS: dict[Fields, str] = {"ensemble": "ensemble", "llm-api": "tensorrt_llm"}


GARBAGE = [b"{", b"[]", b"{}", b'{"text_output":7}', b"[" * 100_000, b'{"text_output":"\xff"}']


class Words:
    """A tokenizer of one token per word, enough for counting."""

    def starts(self, text: str) -> list[int]:
        return [found.start() for found in re.finditer(r"\s*\S+", text)]


def body(fields: Fields = "ensemble") -> dict[str, Any]:
    return json.loads(TritonDialect(fields).request(TURN, "x").body)


def events(whole: bytes, fields: Fields = "ensemble", *, cumulative: bool | None = None) -> list[Event]:
    reader = TritonDialect(fields, cumulative=cumulative).reader()
    return [event for data in SseParser().feed(whole) for event in reader.events(data)]


def pieces(*texts: str, **fields: str) -> bytes:
    lines = [
        json.dumps({"model_name": "ensemble", "model_version": "1", "text_output": text, **fields}) for text in texts
    ]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def ask(fake: TritonFake, fields: Fields = "ensemble", **changes: Any) -> tuple[int, bytes]:
    """Status and body; if the connection broke, the body received so far."""

    async def story() -> tuple[int, bytes]:
        request = TritonDialect(fields).request(TURN, MODELS[fields])
        asked = {**json.loads(request.body), **changes}
        async with (
            running(fake) as url,
            aiohttp.ClientSession() as session,
            session.post(url + request.path, json=asked) as answer,
        ):
            read = bytearray()
            try:
                async for part in answer.content.iter_any():
                    read += part
            except aiohttp.ClientError:
                read += b"<broken>"
            return answer.status, bytes(read)

    return asyncio.run(story())


def decoded(whole: bytes, fields: Fields = "ensemble", end: StreamEnd = StreamEnd.COMPLETE) -> RequestRecord:
    return decode_stream(stream([(10, whole)], end=end), TritonDialect(fields), Words())  # type: ignore[arg-type]


class TestRequests:
    def test_the_ensemble_is_asked_for_an_exact_length_greedily_and_without_the_echo(self) -> None:
        request = TritonDialect().request(TURN, "ensemble")
        assert request.path == "/v2/models/ensemble/generate_stream"
        assert body() == {
            "text_input": "Where is it?",
            "max_tokens": 3,
            "end_id": -1,
            "temperature": 0.0,
            "top_k": 1,
            "exclude_input_in_output": True,
            "stream": True,
        }
        assert TritonDialect().exact_length

    def test_the_llm_api_has_other_names_and_no_way_to_force_a_length(self) -> None:
        assert body("llm-api") == {
            "text_input": "Where is it?",
            "sampling_param_max_tokens": 3,
            "sampling_param_temperature": 0.0,
            "sampling_param_top_k": 1,
            "sampling_param_exclude_input_from_output": True,
            "return_finish_reason": True,
            "streaming": True,
        }
        assert not TritonDialect("llm-api").exact_length

    def test_what_requests_call_the_model_is_part_of_the_path(self) -> None:
        assert TritonDialect().request(TURN, "a/../b").path == "/v2/models/a%2F..%2Fb/generate_stream"

    def test_a_chat_is_refused_with_what_to_do(self) -> None:
        with pytest.raises(BadOption) as caught:
            TritonDialect().request(Turn(4, 3, messages=(Message("user", "Hi"),)), "ensemble")
        assert str(caught.value) == (
            "Triton takes plain text and no chats; name the folder of the model's tokenizer, which renders them "
            "(tokenizer in [model], or --tokenizer of bench)"
        )

    def test_log_probabilities_change_nothing(self) -> None:
        dialect = TritonDialect()
        assert dialect.request(TURN, "m", logprobs=True) == dialect.request(TURN, "m")


class TestStreams:
    def test_each_event_is_a_piece_of_text(self) -> None:
        assert events(pieces(" Par", "is")) == [TokenDelta(" Par"), TokenDelta("is")]

    def test_an_event_of_the_ensemble_without_text_is_a_token_without_text(self) -> None:
        """A special token, at the place of a removed end of sequence."""
        record = decoded(pieces(" one", "", " two"))
        assert (record.chunk_tokens, record.textless_chunks) == ([1, 1, 1], [1])

    def test_the_llm_api_says_the_whole_answer_each_time(self) -> None:
        whole = pieces(" Par", " Paris", " Paris", finish_reason="None") + pieces(" Paris is", finish_reason="length")
        assert events(whole, "llm-api") == [
            *(TokenDelta(" Par"), Finish("None")),
            *(TokenDelta("is"), Finish("None")),
            *(EmptyChunk(), Finish("None")),
            *(TokenDelta(" is"), Finish("length")),
        ]
        assert events(pieces(" a", " a b"), cumulative=True) == [TokenDelta(" a"), TokenDelta(" b")]
        assert events(pieces(" a", " a"), "llm-api", cumulative=False) == [TokenDelta(" a"), TokenDelta(" a")]

    def test_an_incomplete_character_waits_for_its_rest(self) -> None:
        whole = pieces("caf\N{REPLACEMENT CHARACTER}", "café", finish_reason="None")
        deltas = [event for event in events(whole, "llm-api") if isinstance(event, TokenDelta)]
        assert deltas == [TokenDelta("caf"), TokenDelta("é")]

    def test_tokens_are_counted_by_the_tokenizer_since_nothing_else_tells(self) -> None:
        status, whole = ask(TritonFake(Script(group=2)))
        record = decoded(whole)
        assert status == 200
        assert (record.chunk_tokens, record.token_source) == ([2, 1], TokenSource.TOKENIZER)
        assert (record.output_tokens, record.prompt_tokens, record.usage_ns) == (3, None, None)

    def test_the_prompt_is_echoed_where_that_is_not_excluded(self) -> None:
        _, echoed = ask(TritonFake(), exclude_input_in_output=False)
        assert decoded(echoed).text == "Where is it? Paris is the"
        assert decoded(ask(TritonFake())[1]).text == " Paris is the"
        assert decoded(ask(TritonFake(), "llm-api")[1], "llm-api").text == " Paris is the"

    def test_the_model_does_not_end_before_the_wanted_length(self) -> None:
        assert decoded(ask(TritonFake(Script(natural_length=2)))[1]).output_tokens == 3
        early = decoded(ask(TritonFake(Script(natural_length=2)), "llm-api")[1], "llm-api")
        assert (early.output_tokens, early.finish_reason, early.outcome) == (1, "stop", Outcome.OK)

    def test_the_fake_speaks_as_the_real_one(self) -> None:
        head = b'"model_name":"ensemble","model_version":"1","sequence_end":false,"sequence_id":0,"sequence_index":0,'
        first = b"data: {" + head + b'"sequence_start":false,"text_output":" Paris"}\n\n'
        assert ask(TritonFake())[1].startswith(first)
        assert b"[DONE]" not in ask(TritonFake())[1]


class TestEnds:
    def test_a_connection_that_is_closed_in_order_is_a_whole_answer(self) -> None:
        record = decoded(ask(TritonFake())[1])
        assert (record.outcome, record.finish_reason, record.error) == (Outcome.OK, None, None)
        assert TritonDialect().ends_by_closing
        assert not OpenAiDialect().ends_by_closing

    def test_a_finish_reason_is_told_where_the_model_has_one(self) -> None:
        record = decoded(ask(TritonFake(), "llm-api")[1], "llm-api")
        assert (record.outcome, record.finish_reason) == (Outcome.OK, "length")

    def test_a_connection_that_breaks_is_a_stream_error(self) -> None:
        status, whole = ask(TritonFake(faults=["break"]))
        assert (status, whole.endswith(b"<broken>")) == (200, True)
        assert decoded(whole.removesuffix(b"<broken>"), end=StreamEnd.RESET).outcome is Outcome.STREAM_ERROR

    def test_an_answer_without_a_token_is_no_answer(self) -> None:
        status, whole = ask(TritonFake(faults=["empty"]))
        record = decoded(whole)
        assert (status, whole) == (200, b"")
        assert (record.outcome, record.error) == (Outcome.EMPTY, "the answer has no token")

    @pytest.mark.parametrize(
        ("fault", "message", "chunks"),
        [("error", "the executor is gone", 1), ("coupled", "Streaming is only supported in decoupled mode.", 0)],
    )
    def test_an_error_under_status_200_is_a_stream_error(self, fault: str, message: str, chunks: int) -> None:
        status, whole = ask(TritonFake(faults=[fault]))
        record = decoded(whole)
        assert (status, record.outcome, record.error) == (200, Outcome.STREAM_ERROR, message)
        assert len(record.chunk_ns) == chunks

    def test_an_answer_that_the_engine_gave_up_is_a_failure(self) -> None:
        record = decoded(pieces(" a", finish_reason="cancelled"), "llm-api")
        assert record.outcome is Outcome.STREAM_ERROR
        assert record.error == "the server gave up the answer: its finish reason is 'cancelled'"

    def test_a_refusal_before_inference_is_told_in_one_line(self) -> None:
        status, whole = ask(TritonFake(faults=["full"]))
        assert TritonDialect().refusal(status, whole) == (
            "HTTP 400: [request id: <id_unknown>] Exceeds maximum queue size"
        )

    @pytest.mark.parametrize(
        "data", [b"{", b"[]", b"{}", b'{"text_output":7}', b"[" * 100_000, b'{"text_output":"\xff"}']
    )
    def test_invalid_data_is_a_fault_not_an_exception(self, data: bytes) -> None:
        (fault,) = TritonDialect().reader().events(data)
        assert isinstance(fault, StreamFault)
