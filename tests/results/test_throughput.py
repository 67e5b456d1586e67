"""The steady window, the rates over it, and goodput, against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.metrics import throughput
from results.metrics.window import Window, steady_window
from results.records import Load, Outcome, Slo
from tests.results.handmade import MS, request

OPEN = Load(rate_per_s=2.0, arrival="poisson")
SECOND = Window(0, 1000 * MS)


def test_open_loop_window_is_the_arrival_process() -> None:
    window = steady_window([request(5, [900])], OPEN, 0, 700 * MS)
    assert (window.start_ns, window.end_ns) == (0, 700 * MS)
    assert window.length_s == pytest.approx(0.7)


def test_closed_loop_window_leaves_ramp_and_drain_out() -> None:
    """c = 2: slots fill at 0 and 10 ms; [0, 100], [10, 60], [60, 150]; from 100 on one is left: window 10…100."""
    requests = [request(0, [100]), request(10, [60]), request(60, [150])]
    window = steady_window(requests, Load(concurrency=2), 0, 200 * MS)
    assert (window.start_ns, window.end_ns) == (10 * MS, 100 * MS)


def test_an_arrival_that_meets_a_departure_is_not_one_more() -> None:
    """c = 3: [0, 10], [0, 20], [10, 30] are never three at once, so there is no window."""
    requests = [request(0, [10]), request(0, [20]), request(10, [30])]
    assert steady_window(requests, Load(concurrency=3), 0, 200 * MS).length_s == 0.0


def test_closed_loop_window_ends_with_issuing_at_the_latest() -> None:
    requests = [request(0, [100]), request(0, [120])]
    assert steady_window(requests, Load(concurrency=2), 0, 80 * MS).end_ns == 80 * MS


def test_a_slot_that_refills_at_the_same_instant_never_left() -> None:
    """One slot: [0, 50], [50, 90]. The arrival at 50 takes the place of the departure: the window is 0…90, not 0…50."""
    requests = [request(0, [50]), request(50, [90])]
    window = steady_window(requests, Load(concurrency=1), 0, 200 * MS)
    assert (window.start_ns, window.end_ns) == (0, 90 * MS)


def test_concurrency_never_reached_gives_an_empty_window() -> None:
    window = steady_window([request(0, [100])], Load(concurrency=3), 7 * MS, 200 * MS)
    assert window.length_s == 0.0
    reason = throughput.output_tokens_per_s([request(0, [100])], window).reason
    assert reason == "the steady window is empty"


def test_tokens_at_the_edges_of_the_window() -> None:
    """Chunks at −1, 0, 500, 999 and 1,000 ms with 1, 2, 4, 8 and 16 tokens; [0, 1 s) holds 2 + 4 + 8 = 14 tok/s."""
    r = request(-5, [-1, 0, 500, 999, 1000], [1, 2, 4, 8, 16])
    assert throughput.output_tokens_per_s([r], SECOND).value == pytest.approx(14.0)


def test_tokens_of_a_failed_request_were_felt_too() -> None:
    r = request(0, [100, 200], outcome=Outcome.STREAM_ERROR)
    assert throughput.output_tokens_per_s([r], SECOND).value == pytest.approx(2.0)


def test_prompt_tokens_count_at_the_first_token() -> None:
    """First tokens at 900 and 1,100 ms: only the first prompt of 30 tokens lies in the second."""
    requests = [request(0, [900], prompt_tokens=30), request(0, [1100], prompt_tokens=70)]
    assert throughput.prompt_tokens_per_s(requests, SECOND).value == pytest.approx(30.0)


def test_a_prompt_without_tokens_adds_none() -> None:
    requests = [request(0, [900], prompt_tokens=30), request(0, [950], prompt_tokens=0)]
    assert throughput.prompt_tokens_per_s(requests, SECOND).value == pytest.approx(30.0)


def test_prompt_tokens_nobody_reported_are_absent_not_zero() -> None:
    value = throughput.prompt_tokens_per_s([request(0, [900])], SECOND)
    assert value.value is None
    assert value.reason == "the engine did not report its prompt tokens"


def test_requests_count_at_their_last_token_when_they_ended_ok() -> None:
    """Of four, one ends outside, one failed, one never had a token: 1 per second."""
    requests = [
        request(0, [100, 900]),
        request(0, [100, 1000]),
        request(0, [100], outcome=Outcome.TRUNCATED),
        request(0),
    ]
    assert throughput.requests_per_s(requests, SECOND).value == pytest.approx(1.0)


def test_goodput_and_attainment_with_failures() -> None:
    """SLO: TTFT ≤ 100 ms, TPOT ≤ 10 ms, E2E ≤ 150 ms. Five planned: one meets it, three miss a bound each, one fails.

    Goodput: 1 in 1 s. Attainment: 1 of 5 = 20 %; the failure is a miss, not a gap in the data.
    """
    slo = Slo(ttft_s=0.100, tpot_s=0.010, e2e_s=0.150)
    requests = [
        request(0, [100, 110]),
        request(0, [101, 102]),
        request(0, [50, 61]),
        request(0, [90, *range(91, 152)]),
        request(0, outcome=Outcome.HTTP_ERROR),
    ]
    assert [throughput.meets(r, slo) for r in requests] == [True, False, False, False, False]
    assert throughput.goodput_per_s(requests, SECOND, slo).value == pytest.approx(1.0)
    assert throughput.attainment(requests, slo).value == pytest.approx(0.2)


def test_goodput_counts_requests_planned_inside_the_window() -> None:
    requests = [request(-1, [50]), request(0, [50]), request(1000, [1050])]
    assert throughput.goodput_per_s(requests, SECOND, Slo(e2e_s=1)).value == pytest.approx(1.0)


def test_an_undefined_tpot_keeps_its_bound() -> None:
    assert throughput.meets(request(0, [50], [9]), Slo(tpot_s=0.001))


def test_without_an_slo_or_without_requests_there_is_no_goodput() -> None:
    assert throughput.goodput_per_s([], SECOND, Slo()).reason == "the experiment sets no SLO"
    assert throughput.attainment([], Slo()).reason == "the experiment sets no SLO"
    assert throughput.attainment([], Slo(e2e_s=1)).reason == "no request was planned"


@given(st.lists(st.tuples(st.integers(-200, 1200), st.integers(1, 9)), max_size=60), st.integers(1, 1000))
def test_throughput_is_the_count_inside_over_the_length(chunks: list[tuple[int, int]], end: int) -> None:
    requests = [request(-300, [t], [n]) for t, n in chunks]
    window = Window(0, end * MS)
    expected = sum(n for t, n in chunks if 0 <= t < end) / (end / 1000)
    assert throughput.output_tokens_per_s(requests, window).value == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 500)), min_size=1, max_size=30), st.integers(1, 5))
def test_the_closed_loop_window_lies_inside_the_issuing(spans: list[tuple[int, int]], concurrency: int) -> None:
    requests = [request(start, [start + length]) for start, length in spans]
    window = steady_window(requests, Load(concurrency=concurrency), 0, 800 * MS)
    assert window.start_ns >= 0
    assert window.end_ns <= 800 * MS
    if window.length_s > 0:
        busy = sum(r.planned_ns <= window.start_ns < r.ended_ns for r in requests)
        assert busy >= concurrency
