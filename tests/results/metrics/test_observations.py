"""What the numbers are based on: its counts equal those of the metrics themselves."""

import math

import msgspec
import numpy as np
import pytest

from bakeoff import results
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import warning
from bakeoff.results.metrics import CATALOGUE, trial_metrics
from bakeoff.results.metrics.catalogue import FAMILIES
from bakeoff.results.metrics.trial import observation_counts
from bakeoff.results.records import Load, Outcome, Phase, Slo, TelemetryRecord, Window
from bakeoff.results.report.sections.basis import basis_table
from tests.results import one_request
from tests.results.handmade import MS, request, trial

TRIAL = trial(Load(rate_per_s=1.0), issue_end=1000)
REQUESTS = [
    request(0, [10, 50, 60], [1, 4, 2], sent=3, index=0),
    request(20, [30, 900, 1100], [1, 1, 3], sent=20, index=1),
    request(30, [40], sent=30, index=2),
    request(40, [45, 60], ended=70, outcome=Outcome.STREAM_ERROR, sent=40, index=3),
    request(50, ended=80, outcome=Outcome.REFUSED, index=4),
    request(5, [6, 7], sent=5, phase=Phase.WARMUP, index=5),
]


def test_every_metric_has_a_family_and_every_family_a_metric() -> None:
    assert {metric.family for metric in CATALOGUE.values()} == set(FAMILIES)
    assert CATALOGUE["ttft_from_send_p99_s"].family == "ttft_from_send"
    assert CATALOGUE["attainment"].family == "attainment"


def test_worked_by_hand() -> None:
    telemetry = [
        TelemetryRecord(0, "engine", {"rss_bytes": 5}),
        TelemetryRecord(5 * MS, "engine", {"rss_bytes": None}),
        TelemetryRecord(5 * MS, "gpu0", {"energy_j": 1.0, "memory_used_bytes": 1}),
        TelemetryRecord(5 * MS, "gpu1", {"energy_j": 1.0, "memory_used_bytes": 1}),
        TelemetryRecord(5 * MS, "cpu", {"cores": 2, "unused_s": 1.0, "own_s": 1.0}),
        TelemetryRecord(2000 * MS, "cpu", {"cores": 2, "unused_s": 1.0, "own_s": 1.0}),
        TelemetryRecord(2000 * MS, "gpu0", {"energy_j": 9.0, "memory_used_bytes": 1}),
    ]
    counts = observation_counts(TRIAL, REQUESTS, telemetry)
    assert counts == {
        "first_visible": 0, "thinking": 0, "reasoning_tpot": 0, "visible_tpot": 0, "visible_tokens_per_s": 0,
        "reasoning_tokens": 0, "hidden_tokens": 0, "reasoning_share": 0, "right_share": 0,
        "interactivity_p50": 0, "interactivity_p90": 0, "sessions_per_hour": 0, "session_s": 0, "session_tool_s": 0,
        "session_server_s": 0, "session_stretch": 0, "tokens_per_s_per_session": 0,
        "generated_reuse_share": 0,
        "ttft": 5, "ttft_from_send": 5, "e2e": 5, "normalized_latency": 5, "tpot": 4, "send_lag": 4,
        "itl": 8, "chunk_gap": 4, "output_tokens_per_s": 12, "generated_tokens_per_s": 12, "prompt_tokens_per_s": 3,
        "uncached_prompt_tokens_per_s": 3, "requests_per_s": 3, "requests_in_flight": 4, "foreign_cpu_share": 1,
        "goodput_per_s": 5, "attainment": 5, "failures": 5, "tokens_per_chunk": 9, "peak_host_bytes": 1,
        "peak_gpu_bytes": 2, "energy_per_output_token_j": 2, "energy_above_idle_per_output_token_j": 2,
        "energy_per_request_j": 2,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ttft", "itl", "chunk_gap", "tpot", "e2e"])
def test_the_percentile_is_over_the_counted_observations(demo: results.Run, family: str) -> None:
    """The p50 of exactly that many observations equals the metric; a failed request counts as later than all others."""
    measures = {"ttft": one_request.ttft_s, "tpot": one_request.tpot_s, "e2e": one_request.e2e_s}
    for run_trial in demo.finished:
        load = [r for r in run_trial.requests if r.phase is Phase.MEASURED and run_trial.window.holds(r.planned_ns)]
        if family in measures:
            done = [r for r in load if r.outcome is Outcome.OK]
            values = [value for r in done if (value := measures[family](r)) is not None]
            values += [math.inf] * (len(load) - len(done))
        else:
            values = {"itl": one_request.itl_s, "chunk_gap": one_request.chunk_gaps_s}[family](load, run_trial.window)
        assert observation_counts(run_trial.record, run_trial.requests, run_trial.telemetry)[family] == len(values)
        assert run_trial.metrics[f"{family}_p50_s"].value == pytest.approx(np.median(values))


@pytest.mark.parametrize("code", [FindingCode.BACKLOG_GREW, FindingCode.SATURATED])
def test_while_a_backlog_grew_requests_count_by_their_last_token(code: FindingCode) -> None:
    """The second of three ends after the window, so two are the observations, as in requests/s."""
    grew = msgspec.structs.replace(TRIAL, findings=[warning(code)])
    counts = observation_counts(grew, REQUESTS, [])
    assert counts["requests_per_s"] == counts["prompt_tokens_per_s"] == 2
    assert trial_metrics(grew, REQUESTS, [], Slo())["requests_per_s"].value == pytest.approx(2.0)


def test_a_missing_percentile_names_the_same_count() -> None:
    metrics = trial_metrics(TRIAL, REQUESTS, [], Slo())
    counts = observation_counts(TRIAL, REQUESTS, [])
    for family in ("ttft", "itl", "tpot", "send_lag"):
        assert f"there are {counts[family]}" in (metrics[f"{family}_p99_s"].reason or "")


def test_the_table_adds_valid_trials_up(demo: results.Run) -> None:
    """24 requests a trial, of which two of transformers fail; its first trial at c=1 is INVALID."""
    table = basis_table(demo)
    rows = {title: row for row in table.rows for _, title in row.metrics}
    assert [column.trials for column in table.columns] == ["3", "2", "3", "3", "3", "3", "3", "3"]
    assert rows["TTFT"].counts[:4] == ["72", "48", "72", "72"]
    assert rows["failures"].counts[:4] == ["72", "48", "72", "72"]
    assert set(rows["peak GPU memory"].counts) == {"0"}
    assert rows["TTFT"] is rows["E2E"]
    assert {family for row in table.rows for family, _ in row.metrics} == set(FAMILIES)


def test_without_a_finished_trial_nothing_is_counted() -> None:
    assert set(observation_counts(msgspec.structs.replace(TRIAL, window=Window(0, 0)), [], []).values()) == {0}
