from typing import Any

import pytest

from harness.telemetry.gpu import THERMAL_REASONS
from harness.verdict import Evidence, judge, warnings
from results.metrics.window import Window
from results.records import (
    Cache,
    ClientError,
    Load,
    Outcome,
    Phase,
    RequestRecord,
    TelemetryRecord,
    TokenSource,
    TrafficRecord,
    Verdict,
)
from tests.harness.samples import request

S = 1_000_000_000
GOOD = [request(i) for i in range(10)]


def evidence(requests: list[Any] = GOOD, **changes: Any) -> Evidence:
    fields: dict[str, Any] = {
        "requests": requests,
        "telemetry": [],
        "load": Load(concurrency=1),
        "window": Window(0, 10 * S),
        "max_failure_share": 0.01,
    }
    return Evidence(**{**fields, **changes})


def reasons(*arguments: Any, **changes: Any) -> list[str]:
    verdict, found = judge(evidence(*arguments, **changes))
    assert (verdict is Verdict.INVALID) == bool(found)
    return found


def test_a_good_trial_is_valid():
    assert reasons() == []
    assert warnings(evidence()) == []


def test_a_dead_engine_comes_first():
    assert reasons(engine_death="signal 9")[0] == "engine died: signal 9"


def test_too_many_failures_are_named_by_class_with_the_first_words():
    bad = [*GOOD, request(10, outcome=Outcome.TIMEOUT, error="no end"), request(11, outcome=Outcome.REFUSED)]
    assert reasons(bad) == ["errors: 2 of 12 requests failed (1 timeout, 1 refused); first: no end"]
    assert reasons(bad, max_failure_share=0.2) == []


def test_failures_of_the_warm_up_do_not_count():
    assert reasons([*GOOD, request(10, outcome=Outcome.TIMEOUT, phase=Phase.WARMUP)]) == []


def test_a_short_window_is_no_evidence():
    assert reasons(window=Window(0, S // 2))[0].startswith("too short: the steady window is 0.50 s")


def test_a_client_that_sends_late_accuses_itself():
    late = [request(i, sent_ns=i * S + 50_000_000) for i in range(10)]
    assert reasons(late) == ["client saturated: 10 % of the requests were sent over 50 ms late; use a faster client"]


def test_lateness_far_below_the_latency_is_tolerated():
    late = [request(i, sent_ns=i * S + 50_000_000, chunk_ns=[i * S + 6 * S, i * S + 7 * S]) for i in range(10)]
    assert reasons(late) == []


def test_a_queue_that_grows_is_not_steady_in_an_open_loop_only():
    growing = [request(i, ended_ns=20 * S) for i in range(10)]
    assert reasons(growing, load=Load(rate_per_s=1, arrival="poisson"))[0].startswith("not steady")
    assert reasons(growing) == []


def test_a_steady_queue_is_fine():
    steady = [request(i, ended_ns=i * S + 2 * S) for i in range(10)]
    assert reasons(steady, load=Load(rate_per_s=1, arrival="poisson")) == []


@pytest.mark.parametrize(("t_ns", "invalid"), [(5 * S, True), (11 * S, False)])
def test_throttling_counts_inside_the_window(t_ns: int, invalid: bool):
    sample = TelemetryRecord(t_ns, "gpu0", {"throttle_reasons": THERMAL_REASONS})
    assert bool(reasons(telemetry=[sample])) is invalid


def test_a_lost_request_is_our_bug_and_says_so():
    assert reasons(planned=11)[0].startswith("requests lost: 11 were planned, 10 are in the log")


def test_warnings_name_what_was_seen():
    odd = [
        request(0, output_tokens=5),
        request(1, prompt_tokens=4),
        request(2, cached_tokens=2),  # no warning: what is right depends on what the cache was declared to hold
        request(3, token_source=TokenSource.APPORTIONED),
        request(4, token_source=TokenSource.ASSUMED),
    ]
    found = " | ".join(warnings(evidence(odd)))
    assert "1 of 5 answers are not as long as asked (first: 5 instead of 2 tokens)" in found
    assert "counted 4 prompt tokens where 3 were meant, in 1 of 5" in found
    assert "cache" not in found
    assert "in 1 of 5 answers only the sum is known" in found
    assert "in 1 of 5 answers one token per chunk is a guess" in found


def error(ttft_s: float = 0.001, itl_s: float | None = 0.001, chunks_per_s: float = 10.0) -> ClientError:
    return ClientError(20, chunks_per_s, ttft_s, itl_s, send_lag_s=0.0, cpu_s=0.1)


def test_a_client_that_errs_by_more_than_a_tenth_voids_the_trial():
    """TTFT is 100 ms in the samples, the gap too."""
    assert reasons(client_error=error(0.009, 0.009)) == []
    (found,) = reasons(client_error=error(0.012))
    assert found.startswith("client error: TTFT is known to ± 12 ms, more than 10% of its median 100 ms; give")
    (found,) = reasons(client_error=error(itl_s=0.03))
    assert found.startswith(
        "client error: the gap between chunks is known to ± 30 ms, more than 10% of its mean 100 ms"
    )
    assert reasons(client_error=error(0.03, 0.03), max_error_share=0.5) == []


def test_an_error_of_gaps_is_compared_with_gaps_not_with_tokens():
    """Four tokens in each chunk: a gap of 100 ms is an ITL of 25 ms, and its error is spread like it."""
    grouped = [request(i, chunk_tokens=[4, 4], output_tokens=8, wanted_output_tokens=8) for i in range(10)]
    assert reasons(grouped, client_error=error(itl_s=0.009)) == []


def test_chunks_that_come_in_bursts_are_judged_by_their_pace():
    start = 5 * S
    burst = request(5, chunk_ns=[start + t * S // 100 for t in (10, 10, 10, 40)], chunk_tokens=[1] * 4)
    assert reasons([burst], client_error=error(itl_s=0.009)) == []  # the median gap is 0, the mean 100 ms


def test_answers_of_one_chunk_and_failures_have_no_gap_to_judge():
    assert reasons(client_error=error(itl_s=None)) == []
    nothing = [request(i, chunk_ns=[], chunk_tokens=[]) for i in range(10)]
    assert reasons(nothing, client_error=error(9.0, 9.0)) == []


def test_an_error_found_at_a_slower_pace_is_a_warning():
    """20 chunks in the window of 10 s."""
    assert warnings(evidence(client_error=error(chunks_per_s=1.4))) == []
    (warning,) = warnings(evidence(client_error=error(chunks_per_s=1.2)))
    assert warning == "client error: found at 1 chunks/s, the trial had 2; what is printed as ± may be too small"


def traffic(cache: Cache = Cache.COLD, **changes: Any) -> TrafficRecord:
    """Ten prompts of 100 tokens, of which 200 tokens were in an earlier one."""
    fields: dict[str, Any] = {
        "sha256": "0", "sessions": 10, "requests": 10, "prompt_tokens": 1000, "output_tokens": 20,
        "repeated_tokens": 200, "block_tokens": 16, "cache": cache,
    }  # fmt: skip
    return TrafficRecord(**{**fields, **changes})


def hitting(*cached: int | None) -> list[RequestRecord]:
    return [request(i, prompt_tokens=100, wanted_input_tokens=100, cached_tokens=hit) for i, hit in enumerate(cached)]


@pytest.mark.parametrize(
    ("cached", "cold"),
    [
        ([0] * 10, True),
        ([0, *[40] * 9], True),  # 360 = 200 that the trial repeats, and a block of 16 for each of ten requests
        ([1, *[40] * 9], False),
        ([100] * 10, False),
        ([None] * 10, True),
        ([None] * 9 + [96], True),
    ],
)
def test_a_cold_trial_may_hit_what_it_repeats_itself_and_no_more(cached: list[int | None], cold: bool):
    found = reasons(hitting(*cached), traffic=traffic())
    complaint = (
        f"cache not cold: {sum(hit or 0 for hit in cached)} of 1000 prompt tokens came from the prefix cache, "
        "but the trial itself repeats at most 360; restart the engine or change seed"
    )
    assert found == ([] if cold else [complaint])
    assert warnings(evidence(hitting(*cached), traffic=traffic())) == []


def test_hits_of_the_warm_up_say_nothing():
    warm_up = request(10, phase=Phase.WARMUP, cached_tokens=900, prompt_tokens=1000, wanted_input_tokens=1000)
    assert reasons([*hitting(*[0] * 10), warm_up], traffic=traffic()) == []


@pytest.mark.parametrize("cache", [Cache.PRIMED, Cache.WARM])
def test_a_cache_that_was_filled_on_purpose_may_be_hit(cache: Cache):
    assert reasons(hitting(*[90] * 10), traffic=traffic(cache)) == []
    assert warnings(evidence(hitting(*[90] * 10), traffic=traffic(cache))) == []


@pytest.mark.parametrize(
    ("cache", "cached", "warned"),
    [
        (Cache.WARM, 49, True),
        (Cache.WARM, 50, False),
        (Cache.PRIMED, 0, True),
        (Cache.PRIMED, 20, False),
    ],
)
def test_a_cache_that_was_filled_and_is_not_hit_is_a_warning(cache: Cache, cached: int, warned: bool):
    requests = hitting(*[cached] * 10)
    assert reasons(requests, traffic=traffic(cache)) == []
    complaint = (
        f"cache: {cache.value} as asked, but only {cached * 10} of 1000 prompt tokens came from the prefix cache; "
        "it is switched off or too small"
    )
    assert warnings(evidence(requests, traffic=traffic(cache))) == ([complaint] if warned else [])


@pytest.mark.parametrize("cache", [Cache.PRIMED, Cache.WARM])
def test_an_engine_that_does_not_count_hits_leaves_the_question_open(cache: Cache):
    assert warnings(evidence(hitting(*[None] * 10), traffic=traffic(cache))) == [
        f"cache: {cache.value} as asked, but the engine does not say what it hit"
    ]


def test_prompts_that_are_not_as_long_as_the_workload_says_are_a_warning():
    off = traffic(off_length=2, off_example="chat-3: 12 tokens where 10 were meant")
    assert reasons(traffic=off) == []
    (warning,) = warnings(evidence(traffic=off))
    assert warning == (
        "prompts: 2 of 10 planned prompts are not as long as the workload says "
        "(first: chat-3: 12 tokens where 10 were meant)"
    )


def test_runs_of_which_nothing_is_known_are_judged_without():
    assert reasons(hitting(*[100] * 10)) == []
