"""Ledgers of tokens: of random streams against their truth, and of single ones by hand."""

from collections import Counter

import msgspec
import pytest

from bakeoff.engines.dialects import OpenAiDialect
from bakeoff.harness.client.decode.exchange import decode_stream
from bakeoff.results.metrics.latency import gaps_of
from bakeoff.results.records import RequestRecord, TokenClaim, TokenSource
from bakeoff.results.requests import Requests
from tests.harness.client.decode.random_ledgers import Made, Words, made
from tests.harness.samples import event, stream
from tests.results import one_request

MS = 1_000_000
GUESSES = {TokenSource.ASSUMED, TokenSource.ESTIMATED, TokenSource.UNPLACED}
STOP = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'


def decoded(one: Made) -> RequestRecord:
    return decode_stream(one.record, OpenAiDialect(), Words() if one.has_tokenizer else None)  # type: ignore[arg-type]


def wrong_figures(one: Made, record: RequestRecord) -> list[str]:
    """Figures that are off by more than 1 %."""
    streamed = record.total_chunk_tokens
    figures = {
        "streamed": (float(streamed), float(one.streamed)),
        "generated": (float(streamed + (record.hidden_tokens or 0)), float(one.generated)),
        "ttft": (one_request.ttft_s(record), one.token_ms[0] / 1000),
        "e2e": (one_request.e2e_s(record), one.last_ms / 1000),
        "tpot": (one_request.tpot_s(record), one.tpot_s),
    }
    return [
        f"{name} {found} instead of {right}"
        for name, (found, right) in figures.items()
        if found is not None and right is not None and abs(found - right) > 0.01 * right
    ]


def test_no_figure_of_a_valid_answer_is_wrong():
    kept = Counter[bool]()
    for seed in range(400):
        one = made(seed)
        record = decoded(one)
        is_void = record.disbelieved is not None and record.token_source in GUESSES
        if not is_void:
            assert wrong_figures(one, record) == [], (seed, one.says, record.token_source)
        if one.is_sufficient:
            kept[is_void] += 1
    assert kept[True] <= 0.02 * kept.total()


def text(content: str, **more: str) -> str:
    fields = "".join(f',"{name}":{value}' for name, value in more.items())
    return f'{{"choices":[{{"index":0,"delta":{{"content":"{content}"}}}}]{fields}}}'


def answer(*events: tuple[int, str], tokenizer: Words | None = None) -> RequestRecord:
    """An answer from its events with their milliseconds."""
    reads = [(ms * MS, event(data)) for ms, data in events]
    asked = msgspec.structs.replace(stream(reads), requested_output_tokens=600)
    return decode_stream(asked, OpenAiDialect(), tokenizer)  # type: ignore[arg-type]


def usage(tokens: int) -> str:
    return f'{{"prompt_tokens":8,"completion_tokens":{tokens}}}'


def test_tokens_that_a_parser_keeps_back_arrive_with_the_empty_events_that_count_them():
    """10 words, 20 tokens in empty events, 10 words, each 10 ms apart."""
    texts = [" a" if number < 10 or number >= 30 else "" for number in range(40)]
    record = answer(*((10 * (i + 1), text(each, usage=usage(i + 1))) for i, each in enumerate(texts)), (401, STOP))
    assert record.chunk_tokens == [1] * 40
    assert record.textless_chunks == list(range(10, 30))
    assert one_request.tpot_s(record) == pytest.approx(0.010)
    assert set(gaps_of(Requests([record])).seconds.tolist()) == {0.010}


def test_tokens_kept_back_without_a_count_have_no_pace():
    """20 words, then a silence in which 20 more could have come, as the usage at the end says."""
    words = [(10 * (i + 1), text(" a")) for i in range(20)]
    record = answer(*words, (410, STOP), (410, f'{{"choices":[],"usage":{usage(40)}}}'))
    assert record.token_source is TokenSource.UNPLACED
    assert one_request.tpot_s(record) is None


def test_the_end_token_arrives_with_the_finish_reason():
    """vLLM counts it: 8 words, and an empty chunk 20 ms later, are 9 tokens."""
    words = [(20 * (i + 1), text(" a")) for i in range(8)]
    end = (180, f"{STOP[:-1]}" + f',"usage":{usage(9)}}}')
    for tokenizer in (None, Words()):
        record = answer(*words, end, tokenizer=tokenizer)
        assert (record.chunk_tokens, record.chunk_ns[-1]) == ([1] * 9, 180 * MS)
        assert one_request.tpot_s(record) == pytest.approx(0.020)


def test_a_usage_below_the_words_of_the_text_is_not_believed():
    words = [(10 * (i + 1), text(" a")) for i in range(20)]
    for claimed in (1, 4, 14):
        record = answer(*words, (201, STOP), (201, f'{{"choices":[],"usage":{usage(claimed)}}}'))
        assert (record.disbelieved, record.chunk_tokens) == (TokenClaim.USAGE, [1] * 20)
    counted = answer(*words, (201, STOP), (201, f'{{"choices":[],"usage":{usage(10)}}}'), tokenizer=Words())
    assert (counted.token_source, counted.total_chunk_tokens) == (TokenSource.TOKENIZER, 20)


@pytest.mark.parametrize("tokenizer", [None, Words()])
@pytest.mark.parametrize("claimed", [20, 21, 24])
def test_what_the_api_writes_around_the_arguments_of_a_call_does_not_contradict_their_count(
    claimed: int, tokenizer: Words | None
):
    """Twenty arguments of a token each, behind a chunk with the function's name: 80 bytes in 1,000 of JSON."""
    first = '{"index":0,"id":"call_1","type":"function","function":{"name":"find","arguments":""}}'
    calls = [first, *['{"index":0,"function":{"arguments":" the"}}'] * 20]
    chunks = [
        (10 * (i + 1), f'{{"choices":[{{"index":0,"delta":{{"tool_calls":[{each}]}}}}]}}')
        for i, each in enumerate(calls)
    ]
    end = (220, STOP.replace("stop", "tool_calls"))
    record = answer(*chunks, end, (220, f'{{"choices":[],"usage":{usage(claimed)}}}'), tokenizer=tokenizer)
    assert (record.disbelieved, record.total_chunk_tokens) == (None, claimed)
    assert one_request.tpot_s(record) == pytest.approx(0.2 / (claimed - 1), rel=0.05)


def test_usage_of_each_event_is_added_up_where_the_last_cannot_be_the_total():
    record = answer(*((20 * (i + 1), text(" a a", usage=usage(2))) for i in range(10)), (201, STOP))
    assert (record.chunk_tokens, record.disbelieved) == ([2] * 10, None)


def test_text_decides_where_nobody_counts():
    groups = [(30 * (i + 1), text(" one two six")) for i in range(8)]
    record = answer(*groups, (250, STOP))
    assert (record.total_chunk_tokens, record.token_source) == (24, TokenSource.ESTIMATED)
    assert one_request.tpot_s(record) == pytest.approx(0.010)


def test_nothing_behind_the_end_mark_is_the_answer():
    words = [(10 * (i + 1), text(" a")) for i in range(4)]
    again = [(100 + i, text(" a")) for i in range(50)]
    record = answer(*words, (41, STOP), (42, "[DONE]"), *again)
    assert (record.total_chunk_tokens, record.behind_end, record.last_event_ns) == (4, 50, 42 * MS)


def test_chunks_that_nobody_sees_are_counted_at_the_beginning():
    record = answer((10, text(" ")), (20, text("\\u200b")), (400, text(" Hello")), (410, text("\\n")), (411, STOP))
    assert record.blank_chunks == 2
