"""The engine view of a trial: differences between the marks, gauges inside the window, and the division of the time."""

import pytest

from bakeoff.results.metrics import Value
from bakeoff.results.records import Outcome, Phase, RequestRecord, TelemetryRecord, Window
from bakeoff.results.requests import Requests
from bakeoff.results.server_view import ENGINE_FIGURES, PARTS, server_view
from tests.results.handmade import request
from tests.results.readings import S, failed, histogram, reading

WINDOW = Window(2 * S, 8 * S)
TWO = [  # sent at 0 and 100 ms; TTFT from send 100 and 300 ms, E2E 500 and 1,500 ms, 4 and 12 gaps of 100 ms
    request(0, [100, 200, 300, 400, 500], sent=0),
    request(90, [400 + 100 * i for i in range(13)], sent=100),
]


def view(telemetry: list[TelemetryRecord], requests: list[RequestRecord] | None = None) -> dict[str, Value]:
    figures = server_view(telemetry, Requests(TWO if requests is None else requests), WINDOW)
    assert list(figures) == list(ENGINE_FIGURES)
    return figures


def marks(before: dict[str, float], after: dict[str, float]) -> list[TelemetryRecord]:
    return [reading(0, "before", **before), reading(9, "after", **after)]


def numbers(figures: dict[str, Value], prefix: str) -> dict[str, float]:
    return {name: value.value for name, value in figures.items() if name.startswith(prefix) and value.value is not None}


def test_a_counter_is_the_difference_between_the_marks():
    telemetry = [
        reading(0, output_tokens_total=5, preemptions_total=0),
        *marks(
            {"output_tokens_total": 100, "preemptions_total": 2}, {"output_tokens_total": 350, "preemptions_total": 2}
        ),
        reading(9.5, output_tokens_total=999, preemptions_total=7),
    ]
    figures = view(telemetry)
    assert (figures["server_output_tokens"].value, figures["server_preemptions"].value) == (250.0, 0.0)


def test_a_counter_that_shows_only_after_its_first_use_began_at_nothing():
    assert view(marks({}, {"output_tokens_total": 40}))["server_output_tokens"].value == 40.0


def test_shares_are_of_the_differences():
    before = {"prefix_queries_tokens_total": 1000, "prefix_hits_tokens_total": 900}
    after = {"prefix_queries_tokens_total": 3000, "prefix_hits_tokens_total": 1400}
    figures = view(marks({**before, "drafted_tokens_total": 10}, {**after, "drafted_tokens_total": 10}))
    assert figures["server_prefix_hit_share"].value == 0.25
    assert figures["server_acceptance_share"].reason == "the engine does not report it"
    idle = view(marks(before, before))
    assert idle["server_prefix_hit_share"].reason == "no prompt token was looked up"


def test_speculation_is_counted_by_verification_and_by_position():
    before = {
        "drafted_tokens_total": 100,
        "accepted_tokens_total": 80,
        "verifications_total": 30,
        "accepted_at_0_total": 30,
    }
    after = {
        "drafted_tokens_total": 121,
        "accepted_tokens_total": 91,
        "verifications_total": 37,
        "accepted_at_0_total": 36,
        "accepted_at_1_total": 5,
    }
    figures = view(marks(before, after))
    assert numbers(figures, "server_") == {
        "server_drafted_tokens": 21, "server_accepted_tokens": 11, "server_acceptance_share": pytest.approx(11 / 21),
        "server_verifications": 7, "server_tokens_per_verification": pytest.approx(1 + 11 / 7),
        "server_accepted_at_0_share": pytest.approx(6 / 7), "server_accepted_at_1_share": pytest.approx(5 / 7),
        **{f"server_accepted_at_{position}_share": 0.0 for position in range(2, 8)},
    }  # fmt: skip
    accepted = [figures[f"server_accepted_at_{position}_share"].value or 0 for position in range(8)]
    assert 1 + sum(accepted) == pytest.approx(figures["server_tokens_per_verification"].value)


def test_an_engine_without_verifications_has_a_share_and_no_more():
    figures = view(marks({}, {"drafted_tokens_total": 20, "accepted_tokens_total": 5}))
    assert numbers(figures, "server_") == {
        "server_drafted_tokens": 20, "server_accepted_tokens": 5, "server_acceptance_share": 0.25,
    }  # fmt: skip
    assert figures["server_tokens_per_verification"].reason == "the engine does not report it"
    assert figures["server_accepted_at_0_share"].reason == "the engine does not report it"
    idle = {"verifications_total": 3, "accepted_tokens_total": 5}
    assert view(marks(idle, idle))["server_tokens_per_verification"].reason == "no draft was verified"


def test_gauges_are_taken_inside_the_window_only():
    levels = [(1, 50), (2, 1), (4, 3), (6, 2), (8, 60)]
    figures = view([reading(t_s, waiting=level, kv_usage_share=None) for t_s, level in levels])
    assert (figures["server_waiting_mean"].value, figures["server_waiting_peak"].value) == (2.0, 3.0)
    assert figures["server_running_peak"].reason == "the engine does not report it"
    assert figures["server_kv_usage_share_peak"].reason == "no sample falls into the steady window"


def test_a_mean_is_that_of_the_observations_between_the_marks():
    figures = view(marks(histogram("ttft", 30.0, 10), histogram("ttft", 30.8, 14)))
    assert figures["server_ttft_mean_s"].value == pytest.approx(0.2)
    assert figures["server_itl_mean_s"].reason == "the engine does not report it"


def test_a_sum_without_a_count_is_divided_by_the_requests_that_the_client_saw_answered():
    asked = [*TWO, request(0, [5], phase=Phase.WARMUP), request(0, [5], outcome=Outcome.TIMEOUT)]
    figures = view(marks({"prefill_s_sum": 1.0}, {"prefill_s_sum": 1.5}), asked)
    assert figures["server_prefill_mean_s"].value == pytest.approx(0.25)


def test_nothing_observed_has_no_mean():
    same = histogram("ttft", 30.0, 10)
    assert view(marks(same, same))["server_ttft_mean_s"].reason == "the histogram has no observations"


def test_a_quantile_is_interpolated_in_its_bucket_and_says_how_wide_that_is():
    before = histogram("ttft", 0, 10, le_0_1=10, le_0_2=10, le_0_5=10)
    after = histogram("ttft", 9, 30, le_0_1=14, le_0_2=26, le_0_5=30)  # 4, 12 and 4 of 20
    figures = view(marks(before, after))
    assert figures["server_ttft_p50_s"].value == pytest.approx(0.15)
    assert figures["server_ttft_p50_width_s"].value == pytest.approx(0.1)
    assert figures["server_ttft_p99_s"].reason == "p99 needs 662 observations, there are 20"


def test_a_quantile_beyond_the_last_bucket_is_not_guessed():
    after = histogram("itl", 90, 1000, le_0_1=400)
    figures = view(marks({}, after))
    assert figures["server_itl_p50_s"].reason == "it is above the last bucket, 0.1 s"
    assert view(marks({}, histogram("itl", 90, 1000)))["server_itl_p50_s"].reason == "the histogram has no buckets"


def test_the_clients_figures_are_of_the_same_requests_from_send():
    figures = numbers(view([]), "client_")
    assert figures == {
        "client_ttft_mean_s": pytest.approx(0.2),
        "client_itl_mean_s": pytest.approx(0.1),
        "client_e2e_mean_s": pytest.approx(1.0),
    }
    assert view([], [])["client_ttft_mean_s"].reason == "no request ended ok"


def phases(**seconds: float) -> list[TelemetryRecord]:
    """The means of two requests."""
    values: dict[str, float] = {}
    for name, mean_s in seconds.items():
        values |= histogram(name, 2 * mean_s, 2)
    return marks({}, values)


def parts(**seconds: float) -> dict[str, float]:
    return numbers(view(phases(**seconds)), "split_")


def test_the_parts_of_the_mean_e2e_sum_to_it():
    seconds_by_part = parts(queue=0.1, prefill=0.15, decode=0.6, ttft=0.28, e2e=0.9)
    assert seconds_by_part == {
        "split_queue_s": pytest.approx(0.1),
        "split_prefill_s": pytest.approx(0.15),
        "split_decode_s": pytest.approx(0.6),
        "split_other_s": pytest.approx(0.05),
        "split_outside_s": pytest.approx(0.1),
    }
    assert sum(seconds_by_part.values()) == pytest.approx(1.0)  # the client's mean E2E from send


def test_phases_that_are_not_told_follow_from_ttft_and_e2e():
    seconds_by_part = parts(queue=0.1, ttft=0.3, e2e=0.9)
    assert seconds_by_part["split_prefill_s"] == pytest.approx(0.2)
    assert seconds_by_part["split_decode_s"] == pytest.approx(0.6)
    assert seconds_by_part["split_other_s"] == pytest.approx(0.0, abs=1e-9)


def test_an_engine_with_a_queue_and_an_e2e_leaves_the_rest_to_its_server():
    assert parts(queue=0.1, e2e=0.9) == {
        "split_queue_s": pytest.approx(0.1),
        "split_other_s": pytest.approx(0.8),
        "split_outside_s": pytest.approx(0.1),
    }


def test_without_an_e2e_of_the_engine_server_and_network_are_not_told_apart():
    assert parts(prefill=0.3, decode=0.5) == {
        "split_prefill_s": pytest.approx(0.3),
        "split_decode_s": pytest.approx(0.5),
        "split_rest_s": pytest.approx(0.2),
    }


def test_an_engine_mean_above_the_clients_includes_other_requests():
    figures = view(phases(queue=0.5, e2e=1.2))
    assert (
        figures["split_outside_s"].reason
        == "the engine's mean is longer than the client's: it counts other requests too"
    )
    assert view(phases(queue=0.5, e2e=1.005))["split_outside_s"].value == 0.0  # within the two clocks


def test_a_part_that_is_longer_than_the_whole_is_of_other_requests():
    figures = view(phases(queue=1.3, e2e=1.4))
    reason = "the engine's mean is longer than the client's: it counts other requests too"
    assert {figures[part.name].reason for part in PARTS} == {reason}


def test_an_engine_that_tells_nothing_has_no_split():
    figures = view([])
    assert {figures[part.name].reason for part in PARTS} == {"the engine's metrics were not read"}


@pytest.mark.parametrize(
    ("telemetry", "reason"),
    [
        ([], "the engine's metrics were not read"),
        (
            [failed(1, "HTTP 404 Not Found at /metrics")],
            "its metrics page could not be read: HTTP 404 Not Found at /metrics",
        ),
        ([reading(1, output_tokens_total=1)], "its metrics page was not read before the load"),
        (
            [reading(1, "before", output_tokens_total=1)],
            "its metrics page was not read after the load: the trial was cut off",
        ),
        (
            [reading(1, "before", output_tokens_total=1), failed(9, "TimeoutError: timed out at /metrics", "after")],
            "its metrics page could not be read: TimeoutError: timed out at /metrics",
        ),
        (marks({"output_tokens_total": 90}, {"output_tokens_total": 4}),
         "the counter fell from 90 to 4: the engine was restarted"),
        (marks({"output_tokens_total": 90}, {"running": 4}), "the engine does not report it"),
    ],
)  # fmt: skip
def test_what_is_not_known_has_a_reason(telemetry: list[TelemetryRecord], reason: str):
    assert view(telemetry)["server_output_tokens"].reason == reason


def test_a_counter_that_is_no_number_is_none():
    figures = view([reading(1, "before", output_tokens_total=1), reading(9, "after", output_tokens_total=None)])
    assert figures["server_output_tokens"].reason == "the engine reports no number for it"


def test_the_client_counts_what_the_engine_counts():
    """Histories that fill the cache: those sent before the mark at 20 ms are on neither side, others on both."""
    sent = [request(ms, [ms + 5], sent=ms, phase=phase) for ms, phase in (
        (10, Phase.WARMUP), (30, Phase.WARMUP), (40, Phase.RAMP), (50, Phase.MEASURED),
    )]  # fmt: skip
    marked = [reading(0, "before"), reading(0.02, "before", prefill_s_sum=1.0), reading(9, "after", prefill_s_sum=1.6)]
    assert view(marked, sent)["server_prefill_mean_s"].value == pytest.approx(0.2)
