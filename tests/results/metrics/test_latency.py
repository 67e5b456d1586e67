"""Latencies of one request against numbers worked out by hand."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bakeoff.results.metrics import latency
from bakeoff.results.records import Window
from bakeoff.results.requests import Requests
from bakeoff.results.units import NS_PER_S
from tests.results import one_request
from tests.results.handmade import MS, request


def test_ttft_counts_from_the_plan() -> None:
    """Planned at 100 ms, sent at 103, first token at 150: 50 ms include the client's 3 ms, 47 ms do not."""
    r = request(planned=100, sent=103, chunks=[150, 160])
    assert one_request.ttft_s(r) == pytest.approx(0.050)
    assert one_request.ttft_from_send_s(r) == pytest.approx(0.047)
    assert one_request.send_lag_s(r) == pytest.approx(0.003)


def test_a_wait_under_a_cap_is_not_the_clients_lag() -> None:
    """Planned at 100 ms, held back until 130 by max_in_flight, sent at 133: 3 ms late; TTFT to 150 is still 50 ms."""
    r = msgspec.structs.replace(request(planned=100, sent=133, chunks=[150]), due_ns=130 * MS)
    assert one_request.send_lag_s(r) == pytest.approx(0.003)
    assert one_request.ttft_s(r) == pytest.approx(0.050)


def test_opening_a_connection_is_not_the_clients_lag() -> None:
    """Due at 100 ms, connecting from 101 to 161, sent at 163: 1 + 2 ms late; the token at 200 took the user 100 ms."""
    r = msgspec.structs.replace(
        request(planned=100, sent=163, chunks=[200]), dial_start_ns=101 * MS, dial_end_ns=161 * MS
    )
    assert one_request.dial_s(r) == pytest.approx(0.060)
    assert one_request.send_lag_s(r) == pytest.approx(0.003)
    assert one_request.ttft_s(r) == pytest.approx(0.100)


def test_without_a_token_there_is_no_latency() -> None:
    r = request(planned=100, sent=103)
    assert one_request.ttft_s(r) is None
    assert one_request.ttft_from_send_s(r) is None
    assert one_request.e2e_s(r) is None
    assert one_request.normalized_latency_s(r) is None
    assert one_request.tpot_s(r) is None
    assert one_request.chunk_gaps_s([r]) == []


def test_a_request_that_was_never_sent_has_no_send_times() -> None:
    r = request(planned=100, chunks=[150])
    assert one_request.send_lag_s(r) is None
    assert one_request.ttft_from_send_s(r) is None


def test_chunk_gap_and_itl_of_multi_token_chunks() -> None:
    """Chunks of 1, 4 and 2 tokens at 10, 50 and 60 ms.

    Gaps: 40 and 10 ms. ITL: 40 / 4 = 10 ms four times, 10 / 2 = 5 ms twice.
    """
    r = request(chunks=[10, 50, 60], tokens=[1, 4, 2])
    assert one_request.chunk_gaps_s([r]) == pytest.approx([0.040, 0.010])
    assert one_request.itl_s([r]) == pytest.approx([0.010] * 4 + [0.005] * 2)


def test_a_gap_belongs_to_the_window_in_which_it_ends() -> None:
    """Gaps end at 50 and 60 ms; the window [50, 60) contains only the first, since its end is open."""
    r = request(chunks=[10, 50, 60])
    window = Window(50 * MS, 60 * MS)
    assert one_request.chunk_gaps_s([r], window) == pytest.approx([0.040])
    assert one_request.itl_s([r], window) == pytest.approx([0.040])


def test_tpot_leaves_the_first_chunk_out() -> None:
    """(60 − 10) ms over 1 + 4 + 2 − 1 = 6 tokens: 8.333 ms."""
    r = request(chunks=[10, 50, 60], tokens=[1, 4, 2])
    assert one_request.tpot_s(r) == pytest.approx(0.050 / 6)


def test_tpot_is_undefined_when_all_tokens_came_at_once() -> None:
    assert one_request.tpot_s(request(chunks=[10], tokens=[9])) is None


def test_pooled_tpot_weighs_requests_by_their_tokens() -> None:
    """(50 + 20) ms over 6 + 1 tokens: 10 ms; the mean of the two requests' own would be 14.2 ms."""
    answers = [request(chunks=[10, 50, 60], tokens=[1, 4, 2]), request(chunks=[0, 20])]
    assert latency.pooled_tpot_s(Requests([*answers, request(chunks=[5]), request()])) == pytest.approx(0.010)
    assert latency.pooled_tpot_s(Requests([request(chunks=[10], tokens=[9]), request()])) is None


def test_e2e_ends_at_the_last_token_not_at_the_end_of_the_stream() -> None:
    """Last token at 60 ms, the usage chunk and the close at 75: 60 − 5 = 55 ms."""
    assert one_request.e2e_s(request(planned=5, chunks=[10, 60], ended=75)) == pytest.approx(0.055)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Chunk times in ns, rising, and tokens per chunk."""
    gaps = draw(st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
    times = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    return times, draw(st.lists(st.integers(1, 8), min_size=len(times), max_size=len(times)))


@given(streams())
def test_itl_sums_to_the_time_between_first_and_last_chunk(stream: tuple[list[int], list[int]]) -> None:
    times, tokens = stream
    assume(times[-1] - times[0] >= 100_000 * sum(tokens))  # faster ones came at once
    r = request(chunks=[t / MS for t in times], tokens=tokens)
    itl = one_request.itl_s([r])
    assert sum(itl) == pytest.approx((r.chunk_ns[-1] - r.chunk_ns[0]) / NS_PER_S, abs=1e-9)
    assert len(itl) == sum(n for t_ns, n in zip(r.chunk_ns, r.chunk_tokens, strict=True) if t_ns > r.chunk_ns[0])
    tpot = one_request.tpot_s(r)
    assert tpot is None if len(itl) == 0 else tpot == pytest.approx(sum(itl) / len(itl), abs=1e-12)


def test_normalised_latency_is_shared_out_over_all_tokens() -> None:
    """Planned at 5, last token at 60 ms, 7 tokens: 55 / 7 ms each."""
    assert one_request.normalized_latency_s(request(planned=5, chunks=[10, 60], tokens=[1, 6])) == pytest.approx(
        0.055 / 7
    )


def test_an_answer_of_which_the_engine_counted_no_token_has_no_latency_per_token() -> None:
    r = request(chunks=[10, 60], tokens=[0, 0])
    assert one_request.e2e_s(r) == pytest.approx(0.060)
    assert one_request.normalized_latency_s(r) is None
    assert one_request.tpot_s(r) is None
    assert one_request.itl_s([r]) == []


def test_a_gap_of_a_read_in_which_no_token_begins_belongs_to_the_next_token() -> None:
    """Four tokens, each in two reads 10 ms apart: 20 ms each, and the last read adds its 10 ms to the last token."""
    r = request(chunks=[50 + 10 * i for i in range(8)], tokens=[1, 0] * 4)
    assert one_request.itl_s([r]) == pytest.approx([0.020, 0.020, 0.030])
    assert one_request.tpot_s(r) == pytest.approx(0.070 / 3)


def test_tokens_that_come_faster_than_any_engine_have_no_pace() -> None:
    """30 tokens of a tool call in two events 10 µs apart, after 300 ms of silence."""
    r = request(chunks=[300, 300.01], tokens=[1, 29])
    assert one_request.tpot_s(r) is None
    assert one_request.itl_s([r]) == []
    assert one_request.ttft_s(r) == pytest.approx(0.300)
