"""All metrics of one trial, computed from a log whose numbers are all known."""

import math

import msgspec
import pytest

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid, warning
from bakeoff.results.metrics import (
    CATALOGUE,
    HEADLINE,
    Absence,
    Better,
    Unit,
    headline,
    trial_metrics,
    whole_load_metrics,
)
from bakeoff.results.metrics.catalogue import LATENCIES
from bakeoff.results.metrics.declaration import TrialData
from bakeoff.results.metrics.throughput import share_inside
from bakeoff.results.records import Load, Outcome, Phase, Slo, TelemetryRecord, Window
from bakeoff.results.requests import Requests
from tests.results.handmade import MS, request, trial

LOAD = Load(concurrency=1)
OPEN = Load(rate_per_s=5.0, arrival="poisson")
SLO = Slo(e2e_s=0.25)


def serial(count: int) -> list:
    """One slot: each request is planned every 200 ms, its tokens come 50, 100 and 200 ms later (1, 1 and 2)."""
    return [
        request(200 * i, [200 * i + 50, 200 * i + 100, 200 * i + 200], [1, 1, 2], sent=200 * i + 2, index=i,
                prompt_tokens=10)
        for i in range(count)
    ]  # fmt: skip


def test_every_name_of_the_catalogue_has_a_value_or_a_reason() -> None:
    values = trial_metrics(trial(LOAD), serial(4), [], SLO)
    assert set(values) == set(CATALOGUE)
    assert all((value.value is None) != (value.reason is None) for value in values.values())


def test_worked_trial() -> None:
    """Four requests of one slot in 0.8 s.

    Each takes 200 ms: 5 requests, 5 × 4 = 20 tokens and 5 × 10 = 50 prompt tokens a second.
    TTFT 50 ms; TPOT (200 − 50) / 3 = 50 ms; E2E 200 ms; ITL: 50 once and 100 / 2 = 50 twice: 50 ms; gaps 50 and 100.
    """
    record, requests = trial(LOAD, issue_end=800), serial(4)
    values = {name: value.value for name, value in trial_metrics(record, requests, [], SLO).items()}
    assert values["ttft_p50_s"] == pytest.approx(0.050)
    assert values["ttft_from_send_p50_s"] == pytest.approx(0.048)
    assert values["send_lag_p50_s"] == pytest.approx(0.002)
    assert values["tpot_p50_s"] == pytest.approx(0.050)
    assert values["e2e_p50_s"] == pytest.approx(0.200)
    assert values["normalized_latency_p50_s"] == pytest.approx(0.050)
    assert values["itl_p50_s"] == pytest.approx(0.050)
    assert values["chunk_gap_p50_s"] == pytest.approx(0.050)
    assert values["output_tokens_per_s"] == pytest.approx(20.0)
    assert values["prompt_tokens_per_s"] == pytest.approx(50.0)
    assert values["requests_per_s"] == pytest.approx(5.0)
    assert values["goodput_per_s"] == pytest.approx(5.0)
    assert values["attainment"] == pytest.approx(1.0)
    assert values["failures"] == 0.0
    assert values["tokens_per_chunk"] == pytest.approx(4 / 3)
    assert values["ttft_p90_s"] is None


def test_gaps_after_the_window_are_not_counted() -> None:
    """Open loop until 1,000 ms: gaps of 100 ms inside, and one of four tokens in 2,000 ms that ends after it."""
    requests = [request(0, [100, 200, 300, 2300], [1, 1, 1, 4]), request(500, [600, 700])]
    values = trial_metrics(trial(Load(rate_per_s=2.0, arrival="poisson")), requests, [], Slo())
    assert values["itl_p50_s"].value == pytest.approx(0.100)
    assert values["chunk_gap_p50_s"].value == pytest.approx(0.100)


def test_tails_over_tokens_need_as_many_answers() -> None:
    """Seven answers of 1,000 tokens have a median ITL and no p99; 64 answers have a p90."""
    few = [request(0, range(10, 10_010, 10)) for _ in range(7)]
    values = trial_metrics(trial(LOAD, issue_end=20_000), few, [], Slo())
    assert values["itl_p50_s"].value == pytest.approx(0.010)
    for name in ("itl_p90_s", "itl_p99_s", "chunk_gap_p95_s"):
        assert values[name].absence is Absence.TOO_FEW
    assert values["itl_p99_s"].reason == "p99 needs tokens of 662 answers, there are 7"
    many = [request(0, range(10, 10_010, 10)) for _ in range(64)]
    values = trial_metrics(trial(LOAD, issue_end=20_000), many, [], Slo())
    assert values["itl_p90_s"].value == pytest.approx(0.010)
    assert values["itl_p95_s"].absence is Absence.TOO_FEW


def test_a_request_belongs_to_the_window_by_its_plan_and_a_token_by_its_arrival() -> None:
    """Open loop: ramp and tail contribute tokens to the window but no latencies."""
    before, after = request(-100, [-50, 10]), request(1000, [1500])
    values = trial_metrics(trial(OPEN), [before, *serial(5), after], [], SLO)
    assert values["ttft_p50_s"].value == pytest.approx(0.050)
    assert values["output_tokens_per_s"].value == pytest.approx(5 * 4 - 2 + 1)
    assert values["failures"].value == 0


def test_observations_of_percentiles_are_also_listed_by_request() -> None:
    """In the order of the plan; a failed request counts as later than any number and delivered no token."""
    record, requests = trial(LOAD, issue_end=800), serial(4)
    requests[1] = msgspec.structs.replace(requests[1], outcome=Outcome.REFUSED, chunk_ns=[], chunk_tokens=[])
    data = TrialData(Requests(requests), record.window, SLO, share_inside)
    for name, latency in LATENCIES.items():
        if name != "send_lag":
            observations = latency.observe(data)
            values = latency.by_request(Requests(requests[::-1]), record.window).values.tolist()
            assert sorted(values) == sorted([*observations.values_s, *[math.inf] * observations.failures]), name
            assert observations.failures == (0 if name in {"itl", "chunk_gap"} else 1), name
    first = LATENCIES["itl"].by_request(Requests(requests), record.window)
    assert first.values[: first.counts[0]] == pytest.approx([0.05, 0.05, 0.05])


def test_a_failure_is_later_than_every_success() -> None:
    """Of 64 requests seven fail: the p90 lies among them, so it is no number; the median does not."""
    requests = [request(10 * i, [10 * i + 5, 10 * i + 6]) for i in range(57)]
    requests += [request(600 + i, outcome=Outcome.TIMEOUT) for i in range(7)]
    values = trial_metrics(trial(LOAD), requests, [], SLO)
    assert values["ttft_p50_s"].value == pytest.approx(0.005)
    for name in ("ttft_p90_s", "e2e_p90_s", "tpot_p90_s", "ttft_p95_s"):
        assert values[name].absence in {Absence.AMONG_FAILURES, Absence.TOO_FEW}, name
    assert values["ttft_p90_s"].absence is Absence.AMONG_FAILURES


def test_a_failed_request_delivered_tokens() -> None:
    """ITL covers the tokens that arrived, even if their request failed."""
    broken = [request(i, [i + 10, i + 40], outcome=Outcome.STREAM_ERROR) for i in range(3)]
    values = trial_metrics(trial(LOAD), broken, [], SLO)
    assert values["itl_p50_s"].value == pytest.approx(0.030)
    assert values["ttft_p50_s"].absence is Absence.AMONG_FAILURES


def test_an_answer_of_one_token_has_no_tpot_and_is_no_failure() -> None:
    requests = [*serial(3), request(700, [750])]
    assert LATENCIES["tpot"].observe(TrialData(Requests(requests), trial(LOAD).window, SLO, share_inside)).count == 3


def test_events_of_one_read_are_one_chunk() -> None:
    """Four tokens every 40 ms in four events of one read: ITL 10 ms, not 0, 0, 0 and 40."""
    stamps = [t for t in range(40, 240, 40) for _ in range(4)]
    values = trial_metrics(trial(LOAD), [request(0, stamps)], [], SLO)
    assert values["itl_p50_s"].value == pytest.approx(0.010)
    assert values["chunk_gap_p50_s"].value == pytest.approx(0.040)
    assert values["tokens_per_chunk"].value == pytest.approx(4.0)


def test_a_saturated_trial_keeps_its_rates_and_has_no_latency() -> None:
    saturated = msgspec.structs.replace(trial(OPEN, issue_end=800), findings=[invalid(FindingCode.SATURATED)])
    values = trial_metrics(saturated, serial(4), [], SLO)
    assert values["output_tokens_per_s"].value == pytest.approx(17.5)
    for name in ("ttft_p50_s", "itl_p50_s", "goodput_per_s", "attainment"):
        assert values[name].absence is Absence.SATURATED


@pytest.mark.parametrize("code", [FindingCode.SATURATED, FindingCode.BACKLOG_GREW])
def test_requests_of_a_growing_backlog_count_by_their_last_token(code: FindingCode) -> None:
    """Time in the queue is no work: of six requests, three end within 0.8 s, with 30 + 50 + 70 prompt tokens."""
    requests = [
        request(-500, [100, 500], prompt_tokens=30),
        request(100, [700], prompt_tokens=50),
        request(200, [799], prompt_tokens=70),
        request(300, [800], prompt_tokens=90),
        request(0, [100], outcome=Outcome.TRUNCATED),
        request(400, []),
    ]
    grown = msgspec.structs.replace(trial(OPEN, issue_end=800), findings=[warning(code)])
    values = trial_metrics(grown, requests, [], SLO)
    assert values["requests_per_s"].value == pytest.approx(3 / 0.8)
    assert values["prompt_tokens_per_s"].value == pytest.approx(150 / 0.8)


def test_the_whole_load_stands_beside_the_window() -> None:
    """From the start of the load to its last end: 6 requests in 1.1 s, one before and one after the window."""
    record = msgspec.structs.replace(trial(LOAD, issue_end=900), window=Window(100 * MS, 900 * MS))
    requests = [*serial(5), request(950, [1100 - 1e-6], ended=1100 - 1e-6)]
    values = whole_load_metrics(record, requests, SLO)
    assert values["requests_per_s"].value == pytest.approx(6 / 1.1)
    assert values["output_tokens_per_s"].value == pytest.approx(21 / 1.1)


def test_warm_up_is_never_counted() -> None:
    warm = [request(-500, [-100], [1000], phase=Phase.WARMUP, outcome=Outcome.TIMEOUT)]
    record = trial(LOAD)
    assert trial_metrics(record, warm + serial(4), [], SLO) == trial_metrics(record, serial(4), [], SLO)


def test_failures_count_and_leave_the_latencies_alone() -> None:
    broken = request(800, [801], outcome=Outcome.TRUNCATED, sent=800)
    values = trial_metrics(trial(LOAD), [*serial(4), broken], [], SLO)
    assert values["failures"].value == 1.0
    assert values["ttft_p50_s"].value == pytest.approx(0.050)
    assert values["attainment"].value == pytest.approx(0.8)


def test_nothing_arrived() -> None:
    values = trial_metrics(trial(LOAD), [], [], Slo())
    assert values["tokens_per_chunk"].reason == "no token arrived"
    assert values["ttft_p50_s"].reason == "p50 needs 3 observations, there are 0"
    assert values["output_tokens_per_s"].value == 0.0


def test_idle_draw_is_measured_before_the_warm_up() -> None:
    """100 W idle for 10 s, 900 W in a 1 s warm-up, then 500 W for 40 s of load with 400 tokens.

    Energy 40 × 500 = 20,000 J: 50 J per token; above idle (500 − 100) × 40 = 16,000 J: 40 J per token.
    """
    load = [request(11_000, range(11_100, 51_100, 100), ended=51_000.5)]
    warm = [request(10_000, [10_900], phase=Phase.WARMUP)]
    joules, records = 0.0, []
    for tenth in range(530):
        t = tenth / 10
        if t > 0:  # as in a real trial, which starts before its sampler
            records.append(TelemetryRecord(round(t * 1e9), "gpu0", {"energy_j": joules}))
        joules += (100 if t < 10 else 900 if t < 11 else 500) / 10
    record = trial(Load(rate_per_s=1.0, arrival="constant"), started=0, issue_start=11_000, issue_end=51_000)
    values = trial_metrics(record, warm + load, records, Slo())
    assert values["energy_per_output_token_j"].value == pytest.approx(20_000 / 399)
    assert values["energy_above_idle_per_output_token_j"].value == pytest.approx(16_000 / 399, rel=1e-3)
    assert values["energy_per_request_j"].value == pytest.approx(20_000 / (40_000 / 40_000), rel=1e-2)


@pytest.mark.parametrize(
    ("before_s", "reason"),
    [
        (0.0, "no idle baseline was measured"),
        (0.8, "no idle baseline: energy needs a window of 4 s, this one has 0.8 s"),
        (8.0, "no output token in the window"),
    ],
)
def test_energy_without_an_idle_baseline_or_without_tokens_is_absent(before_s: float, reason: str) -> None:
    """500 W until 40 s and no token until then: the energy belongs to no token."""
    records = [TelemetryRecord(t * 1_000_000_000, "gpu0", {"energy_j": 500.0 * t}) for t in range(51)]
    record = trial(Load(rate_per_s=1.0, arrival="constant"), issue_start=1000 * before_s, issue_end=40_000)
    values = trial_metrics(record, [request(40_001, [41_000], ended=41_000)], records, Slo())
    assert values["energy_above_idle_per_output_token_j"].reason == reason
    assert values["energy_per_output_token_j"].reason == "no output token in the window"
    assert values["energy_per_request_j"].reason == "no successful request in the window"


def test_catalogue_is_whole() -> None:
    assert set(HEADLINE) <= set(CATALOGUE)


def test_the_memory_column_is_the_gpus_where_one_was_seen() -> None:
    rare = {"first_visible_p50_s", "right_share"}
    plain = tuple(name for name in HEADLINE if name not in rare)
    assert headline({"peak_host_bytes"}) == plain
    assert headline(rare) == HEADLINE
    on_gpu = headline({"peak_host_bytes", "peak_gpu_bytes"})
    assert on_gpu == tuple("peak_gpu_bytes" if name == "peak_host_bytes" else name for name in plain)
    for name, metric in CATALOGUE.items():
        assert metric.name == name
        assert metric.definition
        assert metric.title
        assert not (name.endswith("_s") and not name.endswith("per_s")) or metric.unit is Unit.SECONDS
        assert metric.better in Better
