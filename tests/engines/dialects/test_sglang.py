"""SGLang's two dialects against its fake: requests, and streams of cumulative events."""

import asyncio
import json
from collections.abc import Sequence

import aiohttp
import msgspec
import pytest

from bakeoff.engines.dialects import (
    Dialect,
    EmptyChunk,
    Event,
    Finish,
    SglangDialect,
    SglangNativeDialect,
    SseParser,
    StreamFault,
    TokenDelta,
    Usage,
)
from bakeoff.harness.client import decode_stream
from bakeoff.results.records import Outcome, TokenSource
from bakeoff.workloads import Message, Turn
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.sglang_flags import arguments
from tests.engines.fakes.stage import Script, Token, event, running
from tests.harness.samples import stream

CHAT = Turn(9, 3, messages=(Message("user", "Hi"),))
COMPLETION = Turn(3, 5, prompt="one two three")
ANSWER = " Paris is the capital of"


def asked(dialect: Dialect, turn: Turn, *, logprobs: bool = False) -> tuple[str, dict]:
    request = dialect.request(turn, "smol", logprobs=logprobs)
    return request.path, json.loads(request.body)


def answer(fake: FakeSglang, dialect: Dialect, turn: Turn, *, logprobs: bool = False) -> tuple[int, bytes]:
    """Status and body of one exchange with the fake."""

    async def exchange() -> tuple[int, bytes]:
        request = dialect.request(turn, "smol", logprobs=logprobs)
        async with (
            running(fake) as url,
            aiohttp.request("POST", url + request.path, data=request.body, headers=request.headers) as reply,
        ):
            return reply.status, await reply.read()

    return asyncio.run(exchange())


def read(dialect: Dialect, payload: bytes) -> list[Event]:
    reader = dialect.reader()
    return [item for data in SseParser().feed(payload) for item in reader.events(data)]


def deltas(events: Sequence[Event]) -> list[TokenDelta]:
    return [streamed for streamed in events if isinstance(streamed, TokenDelta)]


def fake(*faults: str, flags: Sequence[str] = (), **script: float) -> FakeSglang:
    parsed = arguments().parse_args(["--model-path", "m", "--enable-cache-report", *flags])
    return FakeSglang(Script(**script), faults, flags=parsed)


def state(text: str, ids: Sequence[int], total: int, finish: dict | None = None, **meta: object) -> bytes:
    meta_info = {"id": "ab", "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": total, **meta}
    return event({"text": text, "output_ids": list(ids), "meta_info": meta_info})


# Requests.


def test_a_completion_is_asked_natively_with_its_length_forced_and_no_sampling_of_the_models_own() -> None:
    assert asked(SglangNativeDialect(), COMPLETION) == (
        "/generate",
        {
            "text": "one two three",
            "stream": True,
            "sampling_params": {
                "max_new_tokens": 5,
                "min_new_tokens": 5,
                "ignore_eos": True,
                "temperature": 0,
                "repetition_penalty": 1.0,
            },
        },
    )


def test_a_schema_ends_the_answer_so_its_length_is_not_forced() -> None:
    schema = '{"type":"object"}'
    _, native = asked(SglangNativeDialect(), msgspec.structs.replace(COMPLETION, json_schema=schema))
    assert native["sampling_params"] == {
        "max_new_tokens": 5, "temperature": 0, "repetition_penalty": 1.0, "json_schema": schema,
    }  # fmt: skip
    for turn in (CHAT, COMPLETION):
        _, routed = asked(SglangDialect(), msgspec.structs.replace(turn, json_schema=schema))
        assert routed["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert not {"ignore_eos", "min_tokens"} & set(routed)


def test_by_the_openai_route_the_same_is_forced() -> None:
    path, body = asked(SglangDialect(), COMPLETION)
    assert path == "/v1/completions"
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"], body["return_token_ids"]) == (5, 5, True, True)
    assert (body["temperature"], body["repetition_penalty"]) == (0, 1.0)


@pytest.mark.parametrize("dialect", [SglangDialect(), SglangNativeDialect()])
def test_a_chat_goes_by_the_openai_route_and_does_not_ask_for_ids_which_a_stream_refuses(dialect: Dialect) -> None:
    path, body = asked(dialect, CHAT)
    assert path == "/v1/chat/completions"
    assert "return_token_ids" not in body
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (3, 3, True)
    status, _ = answer(fake(), dialect, CHAT)
    assert status == 200


def test_a_chat_that_asks_for_ids_would_be_refused() -> None:
    """The reason for the test above; the fake follows the server's source."""

    class Asking(SglangDialect):
        def sampling(self, turn: Turn) -> dict:
            return {**super().sampling(turn), "return_token_ids": True}

    status, content = answer(fake(), Asking(), CHAT)
    assert SglangDialect().refusal(status, content).startswith("HTTP 400: return_token_ids is not supported")


# Answers.


@pytest.mark.parametrize("flags", [(), ("--incremental-streaming-output",)])
@pytest.mark.parametrize("group", [1, 2, 5])
def test_native_events_are_read_to_the_token_whatever_they_repeat(flags: Sequence[str], group: int) -> None:
    """Biases 1 and 8: events repeat the whole answer, and one may add several tokens."""
    dialect = SglangNativeDialect()
    events = read(dialect, answer(fake(flags=flags, group=group), dialect, COMPLETION)[1])
    text_deltas = deltas(events)
    assert "".join(delta.text for delta in text_deltas) == ANSWER
    assert [token_id for delta in text_deltas for token_id in delta.token_ids or ()] == [100, 101, 102, 103, 104]
    assert [len(delta.token_ids or ()) for delta in text_deltas] == {1: [1] * 5, 2: [2, 2, 1], 5: [5]}[group]
    assert events[-2:] == [Finish("length"), Usage(3, 5, 0, in_choice=True)]


@pytest.mark.parametrize("group", [1, 3])
def test_openai_chunks_are_deltas_with_their_ids(group: int) -> None:
    events = read(SglangDialect(), answer(fake(group=group), SglangDialect(), COMPLETION)[1])
    assert "".join(delta.text for delta in deltas(events)) == ANSWER
    assert [token_id for delta in deltas(events) for token_id in delta.token_ids or ()] == [100, 101, 102, 103, 104]
    assert events[-2:] == [Finish("length"), Usage(3, 5, 0)]


def test_a_chats_chunks_have_no_ids_and_its_usage_says_how_many_tokens_there_were() -> None:
    events = read(SglangNativeDialect(), answer(fake(), SglangNativeDialect(), CHAT)[1])
    assert events[0] == EmptyChunk()
    assert [(delta.text, delta.token_ids) for delta in deltas(events)] == [
        (" Paris", None),
        (" is", None),
        (" the", None),
    ]
    usage = events[-1]
    assert isinstance(usage, Usage)
    assert usage.output_tokens == 3


@pytest.mark.parametrize("dialect", [SglangDialect(), SglangNativeDialect()])
@pytest.mark.parametrize(("group", "counts"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3])])
def test_a_chats_chunks_are_counted_by_what_the_usage_says_so_far(
    dialect: Dialect, group: int, counts: list[int]
) -> None:
    """Bias 8, for answers without ids."""
    _, content = answer(fake(group=group), dialect, CHAT)
    record = decode_stream(stream([(10, content)]), dialect, None)
    assert (record.chunk_tokens, record.token_source) == (counts, TokenSource.COUNTS)
    assert record.output_tokens == 3


def test_each_reader_begins_anew() -> None:
    dialect = SglangNativeDialect()
    _, content = answer(fake(), dialect, COMPLETION)
    assert read(dialect, content) == read(dialect, content)


def test_an_event_without_new_text_is_no_token() -> None:
    payload = state(" a", [1], 1) + state(" a", [1], 1) + state(" a b", [1, 2], 2, {"type": "length", "length": 2})
    events = [parsed for parsed in read(SglangNativeDialect(), payload) if not isinstance(parsed, Usage)]
    assert events == [TokenDelta(" a", (1,)), EmptyChunk(), TokenDelta(" b", (2,)), Finish("length")]


def test_an_incomplete_character_is_a_token_without_text() -> None:
    payload = state("", [240], 1) + state("🌍", [240, 159], 2)
    assert deltas(read(SglangNativeDialect(), payload)) == [TokenDelta("", (240,)), TokenDelta("🌍", (159,))]


def test_a_server_that_says_no_ids_is_read_by_its_counts() -> None:
    payload = state(" a", [], 1) + state(" a b", [], 2) + state(" a b c", [], 3)
    assert deltas(read(SglangNativeDialect(), payload)) == [TokenDelta(" a"), TokenDelta(" b"), TokenDelta(" c")]


@pytest.mark.parametrize("flags", [(), ("--incremental-streaming-output",)])
def test_log_probabilities_come_one_for_each_new_token(flags: Sequence[str]) -> None:
    dialect = SglangNativeDialect()
    events = read(dialect, answer(fake(flags=flags, group=2), dialect, COMPLETION, logprobs=True)[1])
    assert [delta.logprobs for delta in deltas(events)] == [(-0.5, -0.5), (-0.5, -0.5), (-0.5,)]
    unasked = deltas(read(dialect, answer(fake(flags=flags), dialect, COMPLETION)[1]))
    assert {delta.logprobs for delta in unasked} == {None}


@pytest.mark.parametrize("turn", [CHAT, COMPLETION])
def test_by_the_openai_route_too(turn: Turn) -> None:
    events = read(SglangDialect(), answer(fake(), SglangDialect(), turn, logprobs=True)[1])
    assert {delta.logprobs for delta in deltas(events)} == {(-0.5,)}


@pytest.mark.parametrize("dialect", [SglangDialect(), SglangNativeDialect()])
def test_an_error_after_the_first_event_is_an_error_under_http_200(dialect: Dialect) -> None:
    status, content = answer(fake("late-error"), dialect, COMPLETION)
    record = decode_stream(stream([(10, content)]), dialect, None)
    assert (status, record.outcome, record.error) == (200, Outcome.STREAM_ERROR, "CUDA error")


@pytest.mark.parametrize("dialect", [SglangDialect(), SglangNativeDialect()])
def test_what_does_not_fit_is_refused_in_one_line(dialect: Dialect) -> None:
    status, content = answer(fake(flags=("--context-length", "6")), dialect, COMPLETION)
    assert dialect.refusal(status, content).startswith("HTTP 400: Requested token count exceeds the model's maximum")


def test_an_aborted_answer_is_a_fault() -> None:
    """A full queue or an abort by somebody else: HTTP 200 and a normal finish reason."""
    aborted = {"type": "abort", "message": "The request queue is full.", "status_code": 503}
    record = decode_stream(stream([(10, state("", [], 0, aborted))]), SglangNativeDialect(), None)
    assert (record.outcome, record.error) == (Outcome.STREAM_ERROR, "The request queue is full.")


def test_the_pool_may_cut_an_answer_and_its_count_shows_it() -> None:
    """The scheduler reduces the wanted length to the capacity of the KV pool; only the token count shows it."""
    dialect = SglangNativeDialect()
    _, content = answer(fake("pool"), dialect, Turn(3, 20, prompt="one two three"))
    record = decode_stream(stream([(10, content)]), dialect, None)
    assert (record.outcome, record.output_tokens) == (Outcome.OK, 8)


def test_hits_of_the_prefix_cache_are_read() -> None:
    """Bias 4: a verdict on a cold cache rests on them."""
    payload = state(" a", [1], 1, {"type": "length", "length": 1}, cached_tokens=2)
    assert read(SglangNativeDialect(), payload)[-1] == Usage(3, 1, 2, in_choice=True)


@pytest.mark.parametrize(
    "data", [b"\xff", b"[]", b'{"meta_info":7}', b"{", b'{"text":"a","meta_info":{"finish_reason":3}}']
)
def test_invalid_data_is_a_fault_not_an_exception(data: bytes) -> None:
    for parsed in SglangNativeDialect().reader().events(data):
        assert isinstance(parsed, StreamFault)


def test_the_fake_ends_by_itself_where_it_is_not_forced_on() -> None:
    assert Script(natural_length=3).tokens(9)[-1] == Token(2, "</s>", special=True)
