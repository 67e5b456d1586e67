"""From the tokens of a step to the bytes of each stream: the fast path must give the same as the plain one."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from bakeoff.reference_engine.core.outputs import Phases, SampledToken, TokenOutput
from bakeoff.reference_engine.core.request import FinishReason, Request, SamplingParams
from bakeoff.reference_engine.engine.detokenizer import Detokenizer
from bakeoff.reference_engine.loading.tokenizer import Tokenizer, number_tokenizer
from bakeoff.reference_engine.serving.core.streams import TokenStream
from bakeoff.reference_engine.serving.openai_api.answers import sse
from bakeoff.reference_engine.serving.openai_api.bulk_histogram import BulkHistogram
from bakeoff.reference_engine.serving.openai_api.choices import Choice, OpenChoices
from bakeoff.reference_engine.serving.openai_api.chunks import ChunkEncoder, DirectWriter
from bakeoff.reference_engine.serving.openai_api.fields import ChatFields, CompletionFields, StreamOptions
from bakeoff.reference_engine.serving.openai_api.formats import ChatFormat, TextFormat, usage_of
from tests.reference_engine.conftest import SPECIAL, VOCAB_SIZE, make_tokenizer
from tests.reference_engine.server_calls import LONG, TEXT, with_server

TOKENIZER = Tokenizer(make_tokenizer(), {}, None)
STRAY = TOKENIZER.encode("😀")
NUMBERS = number_tokenizer(50)


class PlainDetokenizer:
    """Decodes every token together with those before it, as text-generation-inference does."""

    def __init__(self, tokenizer, skip):
        self.decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=skip)
        self.context, self.window, self.shown = [], [], 0

    def push(self, token):
        self.window.append(token)
        text = self.decode(self.context + self.window)
        if not text.endswith("\ufffd") or len(self.window) > 64:
            return self.advance(text)
        pending = min(len(text) - len(text.rstrip("\ufffd")), 3)
        fresh = text[self.shown : len(text) - pending]
        self.shown = max(self.shown, len(text) - pending)
        return fresh

    def flush(self):
        return self.advance(self.decode(self.context + self.window)) if self.window else ""

    def advance(self, text):
        fresh, self.context, self.window = text[self.shown :], self.window, []
        self.shown = len(self.decode(self.context))
        return fresh


def assert_same_pieces(tokenizer, ids, skip):
    plain, detokenizer = PlainDetokenizer(tokenizer, skip), Detokenizer(tokenizer, skip_special_tokens=skip)
    assert [detokenizer.push(token) for token in ids] == [plain.push(token) for token in ids]
    assert detokenizer.flush() == plain.flush()


ANY_TOKEN = st.integers(0, VOCAB_SIZE - 1) | st.sampled_from(STRAY) | st.integers(0, len(SPECIAL) - 1)


@given(st.lists(ANY_TOKEN, max_size=40), st.booleans())
def test_each_token_has_the_text_that_decoding_with_its_neighbours_gives(ids, skip):
    assert_same_pieces(TOKENIZER, ids, skip)


@given(st.integers(60, 70), st.lists(ANY_TOKEN, max_size=10), st.integers(1, 3))
def test_so_it_has_after_more_broken_bytes_than_a_window_holds(count, ids, length):
    assert_same_pieces(TOKENIZER, STRAY[-1:] * count + STRAY[:length] + ids, skip=True)


@given(st.lists(st.integers(0, 49), max_size=10))
def test_a_decoder_that_looks_at_neighbours_is_asked_with_them(ids):
    assert_same_pieces(NUMBERS, ids, skip=True)


def output(token, name="a", finish_reason=None, logprob=None):
    return TokenOutput(name, SampledToken(token, logprob), finish_reason, gap_s=0.01)


def fields_of(route, **more):
    return CompletionFields(prompt="x", **more) if route is TextFormat else ChatFields(messages=[{}], **more)


def choices_of(names, fields):
    requests = [Request(name, [5, 6], SamplingParams(max_tokens=99)) for name in names]
    return [Choice(index, request, fields, TOKENIZER) for index, request in enumerate(requests)]


def open_stream(names):
    return TokenStream(lambda _: None, names)


def encoder_of(names="a", route=TextFormat, options=StreamOptions(), *, ids=False, stream=None, **more):  # noqa: B008
    """An encoder, and a function that makes the same bytes the ordinary way, from choices of its own."""
    form, fields = route("id-1", "a model", return_token_ids=ids), fields_of(route, **more)
    encoder = ChunkEncoder(
        OpenChoices(choices_of(names, fields), stream or open_stream(names)), form, [[5, 6]], options
    )
    choices = choices_of(names, fields)

    def ordinary(outputs):
        written = b""
        for output in outputs:
            choice = choices[names.index(output.request_id)]
            chunk = form.chunk(choice.push(output), choice)
            if options.continuous_usage_stats:
                chunk.usage = usage_of(choices, [[5, 6]])
            opening = form.opening(choice) if choice.num_output == 1 else []
            written += b"".join(map(sse, (*opening, chunk)))
        return written

    return encoder, ordinary


SOME_OUTPUTS = st.lists(st.tuples(st.sampled_from("ab"), ANY_TOKEN, st.none() | st.just(-0.5)), max_size=20)


@pytest.mark.parametrize("route", [TextFormat, ChatFormat])
@pytest.mark.parametrize("ids", [False, True])
@given(SOME_OUTPUTS, st.booleans(), st.booleans())
def test_events_are_the_bytes_of_the_ordinary_encoder(route, ids, made, has_usage, has_logprobs):
    options = StreamOptions(continuous_usage_stats=has_usage)
    more = {"logprobs": True if route is ChatFormat else 0} if has_logprobs else {}
    encoder, ordinary = encoder_of("ab", route, options, ids=ids, **more)
    outputs = [output(token, name, logprob=logprob) for name, token, logprob in made]
    outputs.append(output(7, "a", FinishReason.LENGTH))
    assert encoder.encode(outputs) == ordinary(outputs)


def test_characters_that_json_escapes_are_escaped():
    outputs = [output(token) for token in TOKENIZER.encode('x"\\\n\t\x01é😀')]
    encoder, ordinary = encoder_of()
    assert encoder.encode(outputs) == ordinary(outputs)


class FakeTransport:
    def __init__(self):
        self.written, self.unsent, self.closing = [], 0, False

    def write(self, data):
        self.written.append(data)

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return self.closing


def put_all(stream, outputs):
    """What the client does with the tokens of one step."""
    must_deliver = [stream.put(output) for output in outputs]
    if any(must_deliver) and stream.deliver():
        stream.write()


def with_writer(test, names="a", **more):
    async def main():
        stream, transport = open_stream(names), FakeTransport()
        encoder, ordinary = encoder_of(names, stream=stream, **more)
        writer = DirectWriter(SimpleNamespace(transport=transport), encoder)
        task = asyncio.ensure_future(stream.next_outputs(writer))
        await asyncio.sleep(0)
        await test(stream, transport, task, ordinary)
        task.cancel()

    asyncio.run(main())


def test_the_tokens_of_a_step_are_one_write_and_wake_no_task():
    async def test(stream, transport, task, ordinary):
        for step in ([output(3), output(4, "b"), output(5)], [output(6)]):
            transport.written.clear()
            put_all(stream, step)
            events = ordinary(step)
            assert transport.written == [f"{len(events):x}\r\n".encode() + events + b"\r\n"]
        await asyncio.sleep(0)
        assert not task.done()

    with_writer(test, "ab")


@pytest.mark.parametrize("change", [{"unsent": 1}, {"closing": True}])
def test_a_connection_that_takes_nothing_now_leaves_the_tokens_to_the_task_which_can_wait(change):
    async def test(stream, transport, task, _):
        vars(transport).update(change)
        put_all(stream, [output(3), output(4)])
        put_all(stream, [output(5)])
        assert [output.token.token_id for output in await task] == [3, 4, 5]
        assert not transport.written

    with_writer(test)


def test_the_last_tokens_are_the_tasks_which_ends_the_answer_with_them():
    async def test(stream, transport, task, _):
        put_all(stream, [output(3), output(4, finish_reason=FinishReason.LENGTH)])
        assert len(await task) == 2
        assert not transport.written
        assert stream.is_over

    with_writer(test)


def test_a_stop_string_ends_the_wait():
    async def test(stream, transport, task, ordinary):
        step = [output(token) for token in TOKENIZER.encode("a;b")]
        put_all(stream, step)
        assert await task == []
        (written,) = transport.written
        assert written.split(b"\r\n")[1] == ordinary(step[:2])
        assert stream.num_finished_early == 1

    with_writer(test, stop=";")


def test_what_goes_wrong_in_a_sink_is_raised_where_its_stream_is_read():
    async def test(stream, _, task, __):
        put_all(stream, [output(3, "nobody")])
        with pytest.raises(KeyError):
            await task

    with_writer(test)


def test_who_was_away_gets_what_was_missed_in_parts():
    async def main():
        stream = open_stream("a")
        for token in range(600):
            stream.put(output(token))
        parts = [await stream.next_outputs() for _ in range(3)]
        assert [len(part) for part in parts] == [256, 256, 88]
        assert [output.token.token_id for part in parts for output in part] == list(range(600))

    asyncio.run(main())


def test_phases_are_the_engines_or_the_sum_of_the_gaps():
    (choice,) = choices_of("a", fields_of(TextFormat))
    choice.push(TokenOutput("a", SampledToken(3), None, phases=Phases(1.0, 2.0, 0.0)))
    choice.push(output(4))
    choice.push(output(5))
    assert choice.phases == Phases(1.0, 2.0, 0.01 + 0.01)
    choice.push(TokenOutput("a", SampledToken(3), FinishReason.LENGTH, gap_s=1.0, phases=Phases(1.0, 2.0, 7.0)))
    assert choice.phases == Phases(1.0, 2.0, 7.0)


@given(st.lists(st.floats(0, 20) | st.sampled_from([0.1, 0.5, 10.0])), st.integers(0, 9))
def test_values_in_bulk_count_as_if_they_came_one_by_one(values, cut):
    bulk, plain = CollectorRegistry(), CollectorRegistry()
    buckets = (0.1, 0.5, 10.0)
    histogram = BulkHistogram("some:seconds", "What.", {"model_name": 'a "m"'}, buckets, bulk)
    for part in (values[:cut], values[cut:]):
        histogram.observe_all(part)
    reference = Histogram("some:seconds", "What.", ["model_name"], registry=plain, buckets=buckets).labels('a "m"')
    for value in values:
        reference.observe(value)
    shown = [
        [line for line in generate_latest(registry).splitlines() if not line.startswith(b"some:seconds_created{")]
        for registry in (bulk, plain)
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_is_the_same_over_either_version_of_http(serve, version):
    async def test(s):
        body = json.dumps(LONG | {"max_tokens": 20, "return_token_ids": True}).encode()
        reader, writer = await asyncio.open_connection(s.client.host, s.client.port)
        head = f"POST {TEXT} HTTP/{version}\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        if version == "1.1":
            answer = b"".join(answer.split(b"\r\n")[1::2])
        events = answer.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        tokens = [json.loads(event.removeprefix("data: "))["choices"][0]["token_ids"] for event in events[:-2]]
        whole = await s.post(TEXT, LONG | {"stream": False, "max_tokens": 20, "return_token_ids": True})
        assert [token for (token,) in tokens] == whole["choices"][0]["token_ids"]

    with_server(serve, test)
