import bisect
import itertools
import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import ReferenceDialect, TokenDelta, TokenKind, TransformersDialect, Usage
from bakeoff.harness.client import decode_stream
from bakeoff.harness.client.decode.ledger import ledger_of
from bakeoff.harness.client.decode.token_counts import apportion
from bakeoff.harness.client.wire.stream_content import DecodedStream
from bakeoff.results.records import Outcome, StreamEnd, StreamRecord, TokenSource
from tests.harness.samples import DONE, FINISH, TOKEN, event, stream
from tests.results import one_request

MS = 1_000_000
REFERENCE, TRANSFORMERS = ReferenceDialect(), TransformersDialect()


class Words:
    """A tokenizer of one token per word, enough for counting."""

    def starts(self, text: str) -> list[int]:
        return [found.start() for found in re.finditer(r"\s*\S+", text)]


def token_counts(
    deltas: list[tuple[int, TokenDelta]],
    usage_tokens: int | None,
    tokenizer: Words | None,
    requested: int | None = None,
    *,
    hides_reasoning: bool = False,
) -> tuple[list[int], TokenSource | None]:
    usage = Usage(output_tokens=usage_tokens, hides_reasoning=hides_reasoning)
    ledger = ledger_of(DecodedStream(deltas=deltas, usage=usage), tokenizer, requested)  # type: ignore[arg-type]
    return ledger.counts, ledger.source


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


def test_a_whole_answer_behind_which_the_server_leaves_the_connection_open_is_whole():
    whole, cut = (
        stream([(10, TOKEN + FINISH + DONE)], end=StreamEnd.TIMEOUT),
        stream([(10, TOKEN)], end=StreamEnd.TIMEOUT),
    )
    assert decode_stream(whole, REFERENCE, None).outcome is Outcome.OK
    assert decode_stream(cut, REFERENCE, None).outcome is Outcome.TIMEOUT


def test_an_answer_that_ended_well_without_a_token_is_empty():
    silent = decode_stream(stream([(10, b": still here\n\n")]), ClosingDialect(), None)
    finished = decode_stream(stream([(10, FINISH + DONE)]), REFERENCE, None)
    assert [(r.outcome, r.error) for r in (silent, finished)] == [(Outcome.EMPTY, "the answer has no token")] * 2
    unread = b'data: {"choices":[{"delta":{"role":"assistant","speech":"hello"}}]}\n\n'
    other = decode_stream(stream([(10, unread + FINISH + DONE)]), REFERENCE, None)
    assert other.error == "the answer has no token; delta.speech, which its events carry, is not read"
    cut = decode_stream(stream([(10, DONE)]), REFERENCE, None)
    assert cut.outcome is Outcome.TRUNCATED
    assert decode_stream(stream([], end=StreamEnd.RESET), ClosingDialect(), None).outcome is Outcome.STREAM_ERROR


def test_an_error_event_under_status_200_is_a_stream_error():
    record = decode_stream(stream([(10, TOKEN), (11, event('{"error": "out of memory"}'))]), REFERENCE, None)
    assert (record.outcome, record.error) == (Outcome.STREAM_ERROR, "out of memory")
    assert record.chunk_ns == [10]  # the chunk that arrived stays


class RaisingDialect(ReferenceDialect):
    """A dialect of another package that does not know every event."""

    def events(self, data):
        return [TokenDelta(json.loads(data)["word"])]

    def refusal(self, status, body):
        return json.loads(body)["why"]


def test_a_dialect_that_raises_fails_the_answer_that_it_could_not_read():
    record = decode_stream(stream([(10, event('{"word": "a"}')), (20, event('{"wurd": 1}'))]), RaisingDialect(), None)
    assert (record.outcome, record.chunk_ns) == (Outcome.STREAM_ERROR, [10])
    assert record.error == """RaisingDialect.events failed with KeyError: 'word'; the event: {"wurd": 1}"""
    refused = decode_stream(stream([(10, b'{"error": "full"}')], status=503), RaisingDialect(), None)
    assert (refused.outcome, refused.error) == (Outcome.HTTP_ERROR, "HTTP 503: full")


def test_an_http_error_contains_the_engines_message():
    record = decode_stream(stream([(10, b'{"error":{"message":"too long"}}')], status=400), REFERENCE, None)
    assert (record.outcome, record.error) == (Outcome.HTTP_ERROR, "HTTP 400: too long")


def test_a_place_that_is_not_found_is_named():
    record = decode_stream(stream([(10, b"")], status=404, detail="/v1/rerank"), REFERENCE, None)
    assert record.error == "HTTP 404: empty answer (asked for /v1/rerank)"


def test_a_redirect_names_where_it_points():
    record = decode_stream(stream([], end=StreamEnd.COMPLETE, status=308, detail="http://h/v2"), REFERENCE, None)
    assert (record.outcome, record.error) == (Outcome.HTTP_ERROR, "HTTP 308: redirects to http://h/v2")


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
    deltas = [(10, TokenDelta("one two")), (20, TokenDelta(" three"))]
    assert token_counts(deltas, 3, Words()) == ([2, 1], TokenSource.TOKENIZER)


def test_the_whole_text_is_counted_and_a_split_token_once():
    """A piece is no text of its own: it may end within a token, or begin with half of one."""
    deltas = [(10, TokenDelta("one")), (20, TokenDelta(" tw")), (30, TokenDelta("o")), (40, TokenDelta(" three four"))]
    assert token_counts(deltas, None, Words()) == ([1, 1, 0, 2], TokenSource.TOKENIZER)
    assert token_counts(deltas, 4, Words()) == ([1] * 4, TokenSource.CHUNKS), "one each, as the usage confirms"
    thoughts = [(10, TokenDelta("a", kind=TokenKind.REASONING)), (20, TokenDelta("b"))]
    assert token_counts(thoughts, None, Words()) == ([1, 1], TokenSource.TOKENIZER), "kinds are texts of their own"


@pytest.mark.parametrize(("tokens", "counts"), [(3, [1, 1, 0, 1, 0]), (2, [1, 0, 1, 0, 0]), (1, [1, 0, 0, 0, 0])])
def test_fewer_tokens_than_chunks_are_spread(tokens: int, counts: list[int]):
    deltas = [(10 * i, TokenDelta("x")) for i in range(5)]
    assert token_counts(deltas, tokens, None) == (counts, TokenSource.APPORTIONED)
    assert token_counts(deltas, tokens, None, hides_reasoning=True) == (counts, TokenSource.UNPLACED)


def test_silent_tokens_go_to_the_longest_gap():
    """Usage counts 5 tokens in three chunks: the gap of 40 gets two more, so its pace equals that of the others."""
    deltas = [(100, TokenDelta("a")), (110, TokenDelta(" b")), (150, TokenDelta(" c"))]
    assert token_counts(deltas, 5, Words()) == ([1, 1, 3], TokenSource.APPORTIONED)


def test_without_a_tokenizer_tokens_follow_the_length_of_the_text():
    """By the gaps, the first chunk would have one token, and a pause would look like many tokens."""
    deltas = [(100, TokenDelta("abcd efgh ijkl")), (110, TokenDelta(" mn")), (190, TokenDelta(" op qr"))]
    assert token_counts(deltas, 7, None) == ([4, 1, 2], TokenSource.APPORTIONED)
    textless = [(100, TokenDelta("abcd", (1,))), (110, TokenDelta("")), (190, TokenDelta(" op"))]
    assert token_counts(textless, 7, None) == ([1, 1, 5], TokenSource.APPORTIONED)


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


def greedy(arrivals: list[int], tokens: int) -> list[int]:
    """One token at a time to the chunk with the longest gap per token: what :func:`apportion` computes faster."""
    counts = [1] * len(arrivals)
    if len(counts) == 1:
        return [tokens]
    for _ in range(tokens - len(counts)):
        gaps = [(arrivals[i] - arrivals[i - 1]) / (counts[i] + 1) for i in range(1, len(counts))]
        counts[1 + max(range(len(gaps)), key=gaps.__getitem__)] += 1
    return counts


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 120))
def test_apportioning_is_that_of_highest_averages(gaps: list[int], spare: int):
    arrivals = list(itertools.accumulate(gaps))
    assert apportion(arrivals, len(gaps) + spare) == greedy(arrivals, len(gaps) + spare)


def test_apportioning_costs_no_more_for_a_claim_of_millions(monkeypatch: pytest.MonkeyPatch):
    pushes: list[int] = []
    monkeypatch.setattr("heapq.heappush", lambda queue, item: pushes.append(bisect.insort(queue, item) or 1))
    counts = apportion([0, 10, 30, 31, 31, 100], 10**9)
    assert sum(counts) == 10**9
    assert len(pushes) <= 10


def claiming(tokens: int, *, words: int = 60, asked: int = 79) -> StreamRecord:
    """An answer of words whose usage claims a number of tokens."""
    usage = event(f'{{"choices":[],"usage":{{"prompt_tokens":8,"completion_tokens":{tokens}}}}}')
    end = event('{"choices":[{"text":"","index":0,"finish_reason":"length"}]}')
    reads = [*((MS * (i + 1), text_event(" word")) for i in range(words)), (MS * (words + 1), end + usage)]
    return msgspec.structs.replace(stream(reads), requested_output_tokens=asked)


@pytest.mark.parametrize(
    ("tokens", "tokenizer", "source", "is_wrong"),
    [
        (60, None, TokenSource.CHUNKS, False),
        (79, None, TokenSource.APPORTIONED, False),
        (120, Words(), TokenSource.APPORTIONED, False),  # as many more as fit into the requested length
        (121, Words(), TokenSource.UNPLACED, False),  # most of them are hidden
        (158, None, TokenSource.APPORTIONED, False),
        (159, None, TokenSource.ASSUMED, True),  # more than twice what was asked, and too little text for each
        (380, None, TokenSource.ASSUMED, True),
        (3_000_000, None, TokenSource.ASSUMED, True),
        (3_000_000, Words(), TokenSource.TOKENIZER, True),
    ],
)
def test_a_claim_that_the_answer_cannot_bear_is_not_used(
    tokens: int, tokenizer: Words | None, source: TokenSource, is_wrong: bool
):
    record = decode_stream(claiming(tokens), TRANSFORMERS, tokenizer)  # type: ignore[arg-type]
    assert record.outcome is Outcome.OK
    assert record.output_tokens == tokens
    assert (record.token_source, (record.disbelieved is not None)) == (source, is_wrong)
    assert sum(record.chunk_tokens) == (60 if is_wrong else tokens)
    assert (one_request.tpot_s(record) is None) is (source is TokenSource.UNPLACED)
    assert (one_request.itl_s([record]) == []) is (source is TokenSource.UNPLACED)


def test_an_answer_that_is_longer_than_asked_is_believed():
    record = decode_stream(claiming(60, asked=5), TRANSFORMERS, None)
    assert (record.token_source, (record.disbelieved is not None)) == (TokenSource.CHUNKS, False)
    grouped = decode_stream(claiming(140, words=60, asked=5), TRANSFORMERS, None)  # two bytes a token
    assert (grouped.token_source, (grouped.disbelieved is not None)) == (TokenSource.APPORTIONED, False)


def test_special_tokens_without_text_are_believed_up_to_the_requested_length():
    record = decode_stream(claiming(256, words=1, asked=256), TRANSFORMERS, None)
    assert record.disbelieved is None


@pytest.mark.parametrize("count", [-1, -5, 10**30])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_a_number_that_is_no_count_is_a_broken_answer(name: str, count: int):
    usage = event(f'{{"choices":[],"usage":{{"{name}":{count}}}}}')
    record = decode_stream(stream([(10, TOKEN + FINISH), (20, usage)]), REFERENCE, None)
    assert (record.outcome, record.error) == (Outcome.STREAM_ERROR, f"the server counts {count} tokens")
    assert record.output_tokens == 2, "the last count that is one"


def test_counts_of_chunks_are_not_believed_without_bounds():
    deltas = [(10, TokenDelta(" a", tokens=1)), (20, TokenDelta(" b", tokens=3_000_000))]
    assert token_counts(deltas, None, None, 8) == ([1, 1], TokenSource.ASSUMED)
    assert token_counts(deltas, 4, None, 8) == ([2, 2], TokenSource.APPORTIONED)
