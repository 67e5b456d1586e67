"""The rates over the window, and goodput, against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.metrics import throughput
from bakeoff.results.records import Outcome, Slo, Window
from bakeoff.results.requests import Requests
from tests.results import one_request
from tests.results.handmade import MS, request

SECOND = Window(0, 1000 * MS)


def test_an_empty_window_has_no_rates() -> None:
    reason = throughput.output_tokens_per_s(Requests([request(0, [100])]), Window(7 * MS, 7 * MS)).reason
    assert reason == "the window is empty"


def test_tokens_at_the_edges_of_the_window() -> None:
    """Chunks at −1, 0, 500, 999 and 1,000 ms with 1, 2, 4, 8 and 16 tokens; [0, 1 s) holds 2 + 4 + 8 = 14 tok/s."""
    r = request(-5, [-1, 0, 500, 999, 1000], [1, 2, 4, 8, 16])
    assert throughput.output_tokens_per_s(Requests([r]), SECOND).value == pytest.approx(14.0)


def test_tokens_of_a_failed_request_were_felt_too() -> None:
    r = request(0, [100, 200], outcome=Outcome.STREAM_ERROR)
    assert throughput.output_tokens_per_s(Requests([r]), SECOND).value == pytest.approx(2.0)


def test_prompt_tokens_count_as_their_request_does() -> None:
    """Of [0, 900] all 30 tokens lie in the window, of [500, 1500] half of 70, of [1000, 1100] none: 65 tok/s."""
    requests = [
        request(0, [900], prompt_tokens=30),
        request(500, [1500], prompt_tokens=70),
        request(1000, [1100], prompt_tokens=9),
    ]
    assert throughput.prompt_tokens_per_s(Requests(requests), SECOND).value == pytest.approx(65.0)


def test_prompt_tokens_nobody_reported_are_absent_not_zero() -> None:
    value = throughput.prompt_tokens_per_s(Requests([request(0, [900])]), SECOND)
    assert value.value is None
    assert value.reason == "the engine did not report its prompt tokens"


def test_successful_requests_count_as_their_share_inside() -> None:
    """[−100, 900]: 0.9; [500, 1500]: 0.5; [−500, 1500]: 0.5; one failed and one lies outside: 1.9 per second."""
    requests = [
        request(-100, [100, 900]),
        request(500, [600, 1500]),
        request(-500, [1500]),
        request(0, [100], outcome=Outcome.TRUNCATED),
        request(1000, [1001]),
    ]
    assert throughput.requests_per_s(Requests(requests), SECOND).value == pytest.approx(1.9)


def test_requests_are_in_flight_from_the_send_to_the_end() -> None:
    """[−100, 900] 0.9, [500, 1500] 0.5, a failed one [0, 300] 0.3, one outside, one that was never sent: 1.7."""
    requests = [
        request(-200, [900], sent=-100),
        request(400, [1500], sent=500),
        request(0, sent=0, ended=300, outcome=Outcome.TIMEOUT),
        request(1000, [1100], sent=1000),
        request(0, ended=700, outcome=Outcome.REFUSED),
    ]
    assert throughput.requests_in_flight(Requests(requests), SECOND).value == pytest.approx(1.7)
    assert throughput.requests_in_flight(Requests([]), SECOND).value == 0


def test_a_request_without_any_duration_counts_where_it_is() -> None:
    assert throughput.requests_per_s(
        Requests([request(500, [500]), request(1000, [1000])]), SECOND
    ).value == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(-900, 1900), st.integers(0, 900)), max_size=30), st.integers(1, 999))
def test_two_windows_hold_what_both_together_hold(spans: list[tuple[int, int]], cut: int) -> None:
    """Shares have no edge effects: no request is lost or counted twice where windows meet."""
    requests = Requests(request(start, [start + length]) for start, length in spans)
    for share_of in (throughput.share_inside, throughput.ended_inside):
        first, second, both = (
            float(share_of(requests, Window(a * MS, b * MS)).sum()) for a, b in ((0, cut), (cut, 1000), (0, 1000))
        )
        assert first + second == pytest.approx(both)


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
    assert throughput.meets(Requests(requests), slo).tolist() == [True, False, False, False, False]
    assert throughput.goodput_per_s(Requests(requests), SECOND, slo).value == pytest.approx(1.0)
    assert throughput.attainment(Requests(requests).planned_inside(SECOND), slo).value == pytest.approx(0.2)


def test_goodput_counts_requests_planned_inside_the_window() -> None:
    requests = [request(-1, [50]), request(0, [50]), request(1000, [1050])]
    assert throughput.goodput_per_s(Requests(requests), SECOND, Slo(e2e_s=1)).value == pytest.approx(1.0)


def test_an_undefined_tpot_keeps_its_bound() -> None:
    assert one_request.meets(request(0, [50], [9]), Slo(tpot_s=0.001))


def test_without_an_slo_or_without_requests_there_is_no_goodput() -> None:
    assert throughput.goodput_per_s(Requests([]), SECOND, Slo()).reason == "the experiment sets no SLO"
    assert throughput.attainment(Requests(), Slo()).reason == "the experiment sets no SLO"
    assert throughput.attainment(Requests(), Slo(e2e_s=1)).reason == "no request was planned"


@given(st.lists(st.tuples(st.integers(-200, 1200), st.integers(1, 9)), max_size=60), st.integers(1, 1000))
def test_throughput_is_the_count_inside_over_the_length(chunks: list[tuple[int, int]], end: int) -> None:
    requests = [request(-300, [t], [n]) for t, n in chunks]
    window = Window(0, end * MS)
    expected = sum(n for t, n in chunks if 0 <= t < end) / (end / 1000)
    assert throughput.output_tokens_per_s(Requests(requests), window).value == pytest.approx(expected)
