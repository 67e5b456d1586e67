"""Verdicts that use the engine's own counters."""

from typing import Any

import pytest

from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid, warning
from bakeoff.results.records import Cache, Load, RequestRecord, TelemetryRecord, TrafficRecord, Verdict, Window
from tests.harness.samples import request
from tests.results.readings import reading

S = 1_000_000_000
TEN = [request(i, prompt_tokens=100, requested_input_tokens=100) for i in range(10)]  # 2 output tokens each


def evidence(telemetry: list[TelemetryRecord], requests: list[RequestRecord] = TEN, **changes: Any) -> Evidence:
    return Evidence(
        **{
            "requests": requests,
            "telemetry": telemetry,
            "load": Load(concurrency=1),
            "window": Window(0, 10 * S),
            "max_failure_share": 0.01,
            **changes,
        }
    )


def findings_of(telemetry: list[TelemetryRecord], requests: list[RequestRecord] = TEN, **changes: Any) -> list[Finding]:
    return judge(evidence(telemetry, requests, **changes))[1]


def marks(**moved: float) -> list[TelemetryRecord]:
    """Counters that grew by these amounts under load."""
    return [
        reading(0, "before", **dict.fromkeys(moved, 1000.0)),
        reading(10, "after", **{name: 1000.0 + value for name, value in moved.items()}),
    ]


def traffic(cache: Cache) -> TrafficRecord:
    """Ten prompts of 100 tokens, of which 200 tokens were in an earlier one: 360 may be hit with blocks of 16."""
    return TrafficRecord(
        sha256="0", sessions=10, requests=10, prompt_tokens=1000, output_tokens=20, repeated_tokens=200,
        block_tokens=16, cache=cache,
    )  # fmt: skip


def test_an_engine_that_was_restarted_during_a_trial_makes_it_invalid():
    fell = [reading(0, output_tokens_total=5000), reading(1, output_tokens_total=12)]
    assert judge(evidence(fell)) == (
        Verdict.INVALID,
        [invalid(FindingCode.ENGINE_RESTARTED, counter="output_tokens_total", before=5000, after=12)],
    )


def test_several_servers_behind_one_address_are_a_warning():
    levels = [5000, 12, 5010, 20]
    turns = [reading(i, output_tokens_total=level) for i, level in enumerate(levels)]
    assert judge(evidence(turns)) == (
        Verdict.VALID,
        [warning(FindingCode.SEVERAL_SERVERS, counter="output_tokens_total", before=5010, after=20)],
    )


def test_token_counts_that_disagree_are_a_warning():
    assert findings_of(marks(output_tokens_total=20)) == []
    assert findings_of(marks(output_tokens_total=200)) == [
        warning(FindingCode.COUNTERS_DISAGREE, engine_tokens=200, client_tokens=20)
    ]


@pytest.mark.parametrize(("hits", "cold"), [(0, True), (360, True), (361, False)])
def test_cache_hits_come_from_counters_if_answers_have_none(hits: int, cold: bool):
    findings = findings_of(marks(prefix_hits_tokens_total=hits), traffic=traffic(Cache.COLD))
    complaint = invalid(FindingCode.CACHE_NOT_COLD, cached_tokens=361, prompt_tokens=1000, repeated_tokens=360)
    assert findings == ([] if cold else [complaint])


@pytest.mark.parametrize(("hits", "warm"), [(0, False), (499, False), (500, True)])
def test_a_warm_cache_shows_in_the_engines_counters(hits: int, warm: bool):
    findings = findings_of(marks(prefix_hits_tokens_total=hits), traffic=traffic(Cache.WARM))
    complaint = warning(FindingCode.CACHE_UNUSED, cache="warm", cached_tokens=hits, prompt_tokens=1000)
    assert findings == ([] if warm else [complaint])


def test_cache_hits_in_answers_override_the_counters():
    requests = [request(i, prompt_tokens=100, requested_input_tokens=100, cached_tokens=0) for i in range(10)]
    telemetry = marks(prefix_hits_tokens_total=900)  # of somebody else's requests, as far as the answers go
    assert judge(evidence(telemetry, requests, traffic=traffic(Cache.COLD)))[0] is Verdict.VALID


def test_an_engine_without_counters_leaves_the_cache_unknown():
    assert findings_of(marks(prompt_tokens_total=5), traffic=traffic(Cache.WARM)) == [
        warning(FindingCode.CACHE_UNKNOWN, cache="warm")
    ]
