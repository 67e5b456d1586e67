from hypothesis import given
from hypothesis import strategies as st

from engines.dialects import ReferenceDialect, TokenDelta, TransformersDialect
from harness.client import decode_stream
from harness.client.token_counts import apportion, token_counts
from results.records import Outcome, StreamEnd, TokenSource
from tests.harness.samples import DONE, FINISH, TOKEN, event, stream

REFERENCE, TRANSFORMERS = ReferenceDialect(), TransformersDialect()


class Words:
    """A tokenizer of one token per word, enough for counting."""

    def count(self, text: str) -> int:
        return len(text.split())


def text_event(text: str) -> bytes:
    return event(f'{{"choices":[{{"index":0,"text":"{text}"}}]}}')


def test_an_exact_answer():
    record = decode_stream(stream([(10, TOKEN), (20, TOKEN), (21, FINISH + DONE)]), REFERENCE, None)
    assert record.outcome is Outcome.OK
    assert (record.chunk_ns, record.chunk_tokens, record.token_source) == ([10, 20], [1, 1], TokenSource.IDS)
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (3, 2, "length")
    assert (record.first_byte_ns, record.text) == (10, " a a")


def test_events_of_one_read_share_its_time():
    record = decode_stream(stream([(10, TOKEN + TOKEN), (11, FINISH)]), REFERENCE, None)
    assert record.chunk_ns == [10, 10]


def test_an_event_is_as_late_as_the_read_that_completed_it():
    record = decode_stream(stream([(10, TOKEN[:9]), (15, TOKEN[9:]), (20, TOKEN + FINISH)]), REFERENCE, None)
    assert record.chunk_ns == [15, 20]
    assert record.first_byte_ns == 10


def test_a_role_chunk_is_not_a_token():
    role = event('{"choices":[{"delta":{"role":"assistant"},"index":0}]}')
    word = event('{"choices":[{"delta":{"content":"Hi"},"index":0}]}')
    finish = event('{"choices":[{"delta":{},"index":0,"finish_reason":"length"}],"usage":{"completion_tokens":1}}')
    record = decode_stream(stream([(1, role), (50, word), (51, finish)]), TRANSFORMERS, None)
    assert (record.chunk_ns, record.outcome) == ([50], Outcome.OK)
    assert record.empty_chunk_ns == [1, 51]  # chunks that other clients may count as tokens are recorded separately


def test_the_times_of_the_end_are_kept():
    usage = event('{"choices":[],"usage":{"completion_tokens":1}}')
    word = event('{"choices":[{"text":"Hi","index":0,"finish_reason":"length"}]}')
    record = decode_stream(stream([(10, word), (20, usage), (30, DONE)]), TRANSFORMERS, None)
    assert (record.usage_ns, record.usage_in_choice, record.last_event_ns) == (20, False, 30)
    assert record.end is StreamEnd.COMPLETE
    together = decode_stream(stream([(10, TOKEN), (20, FINISH), (30, b": still here\n\n")]), REFERENCE, None)
    assert (together.usage_ns, together.usage_in_choice, together.last_event_ns) == (20, True, 20)


def test_a_chunk_of_ids_without_text_is_marked():
    silent = event('{"choices":[{"index":0,"text":"","token_ids":[7]}]}')
    record = decode_stream(stream([(10, TOKEN), (20, silent), (30, TOKEN + FINISH)]), REFERENCE, None)
    assert (record.chunk_tokens, record.textless_chunks) == ([1, 1, 1], [1])


def test_a_stream_without_a_finish_reason_is_truncated_even_with_done():
    assert decode_stream(stream([(10, TOKEN + DONE)]), REFERENCE, None).outcome is Outcome.TRUNCATED


class ClosingDialect(ReferenceDialect):
    """A dialect of a format without a finish reason."""

    ends_by_closing = True


def test_where_the_format_has_no_finish_reason_an_orderly_end_makes_an_answer_whole():
    closing = ClosingDialect()
    record = decode_stream(stream([(10, TOKEN)]), closing, None)
    assert (record.outcome, record.finish_reason, record.error) == (Outcome.OK, None, None)
    assert decode_stream(stream([(10, TOKEN)], end=StreamEnd.RESET), closing, None).outcome is Outcome.STREAM_ERROR


def test_an_answer_that_ended_well_without_a_token_is_empty():
    silent = decode_stream(stream([(10, b": still here\n\n")]), ClosingDialect(), None)
    finished = decode_stream(stream([(10, FINISH + DONE)]), REFERENCE, None)
    assert [(r.outcome, r.error) for r in (silent, finished)] == [(Outcome.EMPTY, "the answer has no token")] * 2
    cut = decode_stream(stream([(10, DONE)]), REFERENCE, None)
    assert cut.outcome is Outcome.TRUNCATED
    assert decode_stream(stream([], end=StreamEnd.RESET), ClosingDialect(), None).outcome is Outcome.STREAM_ERROR


def test_an_error_event_under_status_200_is_a_stream_error():
    record = decode_stream(stream([(10, TOKEN), (11, event('{"error": "out of memory"}'))]), REFERENCE, None)
    assert (record.outcome, record.error) == (Outcome.STREAM_ERROR, "out of memory")
    assert record.chunk_ns == [10]  # the chunk that arrived stays


def test_an_http_error_contains_the_engines_message():
    record = decode_stream(stream([(10, b'{"error":{"message":"too long"}}')], status=400), REFERENCE, None)
    assert (record.outcome, record.error) == (Outcome.HTTP_ERROR, "HTTP 400: too long")


def test_each_end_of_the_transport_has_its_class():
    expected = {
        StreamEnd.REFUSED: Outcome.REFUSED,
        StreamEnd.TIMEOUT: Outcome.TIMEOUT,
        StreamEnd.CANCELLED: Outcome.CANCELLED,
        StreamEnd.RESET: Outcome.STREAM_ERROR,
        StreamEnd.TOO_LARGE: Outcome.TOO_LARGE,
    }
    for end, outcome in expected.items():
        status = None if end is StreamEnd.REFUSED else 200
        record = decode_stream(stream([], end=end, status=status, detail="why"), REFERENCE, None)
        assert (record.outcome, record.error) == (outcome, "why")


def test_one_token_per_chunk_is_believed_when_the_usage_confirms_it():
    reads = [(10, text_event("a")), (20, text_event("b")), (21, FINISH)]
    record = decode_stream(stream(reads), TRANSFORMERS, None)
    assert (record.chunk_tokens, record.token_source) == ([1, 1], TokenSource.CHUNKS)


def test_grouped_tokens_are_counted_by_the_tokenizer():
    deltas = [(10, TokenDelta("one two")), (20, TokenDelta("three"))]
    assert token_counts(deltas, 3, Words()) == ([2, 1], TokenSource.TOKENIZER)


def test_silent_tokens_go_to_the_longest_gap():
    """Usage counts 5 tokens in three chunks: the gap of 40 gets two more, so its pace equals that of the others."""
    deltas = [(100, TokenDelta("a")), (110, TokenDelta("b")), (150, TokenDelta("c"))]
    assert token_counts(deltas, 5, Words()) == ([1, 1, 3], TokenSource.APPORTIONED)


def test_one_token_per_chunk_is_only_a_guess_when_nothing_tells():
    assert token_counts([(10, TokenDelta("a")), (20, TokenDelta("b"))], None, None) == ([1, 1], TokenSource.ASSUMED)


def test_no_chunk_has_no_source():
    assert token_counts([], 5, None) == ([], None)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(0, 50))
def test_apportioning_keeps_the_sum_and_gives_each_chunk_a_token(gaps: list[int], spare: int):
    arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    counts = apportion(arrivals, len(gaps) + spare)
    assert sum(counts) == len(gaps) + spare
    assert min(counts) >= 1


@given(st.integers(1, len(TOKEN + TOKEN + FINISH + DONE) - 1))
def test_a_split_anywhere_changes_no_count(cut: int):
    body = TOKEN + TOKEN + FINISH + DONE
    record = decode_stream(stream([(10, body[:cut]), (10, body[cut:])]), REFERENCE, None)
    whole = decode_stream(stream([(10, body)]), REFERENCE, None)
    assert record == whole


def test_counts_that_the_engine_gives_for_each_chunk_are_taken_as_they_are():
    deltas = [(10, TokenDelta(" a", tokens=1)), (20, TokenDelta(" b c", tokens=2))]
    assert token_counts(deltas, 3, None) == ([1, 2], TokenSource.COUNTS)
    unsure = [*deltas, (30, TokenDelta(" d"))]
    assert token_counts(unsure, 3, None) == ([1, 1, 1], TokenSource.CHUNKS)
