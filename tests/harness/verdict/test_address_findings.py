"""Findings about one address beside the others: made-up trials whose truth is known."""

import itertools
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from bakeoff.harness.verdict.addresses import address_findings
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity
from bakeoff.results.records import Load, Outcome, Phase, RequestRecord, TelemetryRecord, Verdict, Window
from tests.harness.samples import request
from tests.results.readings import S, reading

LABELS = ("a:1", "b:2", "c:3")
WINDOW = Window(0, 100 * S)


def sent(
    count: int,
    *,
    ttft_s: Callable[[str, int], float] = lambda _, tokens: 0.02 + 1e-4 * tokens,
    tpot_s: Callable[[str], float] = lambda _: 0.01,
    prompt: Callable[[str], float] = lambda _: 1.0,
    cached: Callable[[str], float] | None = None,
    weights: tuple[float, ...] = (1, 1, 1),
    correlation: float = 0.6,
    spread: float = 0.2,
    seed: int = 1,
) -> list[RequestRecord]:
    """Requests whose times share slow noise at each address, over prompts of 100 to 2,000 tokens."""
    rng = np.random.default_rng(seed)
    slow = dict.fromkeys(LABELS, 0.0)
    requests: list[RequestRecord] = []
    for index in range(count):
        label = str(rng.choice(LABELS, p=np.array(weights) / sum(weights)))
        slow[label] = correlation * slow[label] + rng.normal(0, spread)
        tokens = int(rng.integers(100, 2000) * prompt(label))
        hit = round(tokens * cached(label) * rng.uniform(0.8, 1.2)) if cached else None
        factor = float(np.exp(slow[label] + rng.normal(0, spread)))
        planned_ns = round(index / count * 99 * S)
        first_ns = planned_ns + round(ttft_s(label, tokens - (hit or 0)) * factor * S)
        answer = int(rng.integers(5, 60))
        chunks = [first_ns + round(number * tpot_s(label) * factor * S) for number in range(answer)]
        requests.append(
            RequestRecord(
                index=index,
                phase=Phase.MEASURED,
                session=f"s{index}",
                turn=0,
                address=label,
                planned_ns=planned_ns,
                sent_ns=planned_ns,
                ended_ns=chunks[-1],
                outcome=Outcome.OK,
                prompt_tokens=tokens,
                cached_tokens=hit,
                output_tokens=answer,
                chunk_ns=chunks,
                chunk_tokens=[1] * answer,
            )
        )
    return requests


def found(requests: list[RequestRecord], telemetry: list[TelemetryRecord] | None = None) -> list[Finding]:
    return list(address_findings(requests, telemetry or [], WINDOW))


def only(requests: list[RequestRecord], telemetry: list[TelemetryRecord] | None = None) -> Finding:
    (finding,) = found(requests, telemetry)
    return finding


def test_an_address_that_is_slow_to_its_first_token_is_named() -> None:
    slow = only(sent(600, ttft_s=lambda label, tokens: (0.02 + 1e-4 * tokens) * (1.5 if label == "b:2" else 1)))
    assert slow.code is FindingCode.ADDRESS_SLOW
    assert (slow.parameters["address"], slow.parameters["latency"]) == ("b:2", "ttft")
    assert slow.parameters["slower_share"] == pytest.approx(0.5, abs=0.15)


def test_an_address_that_is_slow_per_output_token_is_named() -> None:
    slow = only(sent(600, tpot_s=lambda label: 0.013 if label == "c:3" else 0.01))
    assert (slow.code, slow.parameters["address"], slow.parameters["latency"]) == (
        FindingCode.ADDRESS_SLOW, "c:3", "tpot",
    )  # fmt: skip


def test_longer_prompts_do_not_make_an_address_slow() -> None:
    codes = {finding.code for finding in found(sent(900, prompt=lambda label: 1.6 if label == "a:1" else 1.0))}
    assert codes == {FindingCode.ADDRESS_IMBALANCE}, "it does get more tokens"


def test_prompts_from_the_cache_do_not_make_the_others_slow() -> None:
    """TTFT depends on the uncached part, which is longer where the cache is hit less."""
    findings = found(sent(900, cached=lambda label: 0.3 if label == "a:1" else 0.7))
    assert [(finding.code, finding.parameters["address"]) for finding in findings] == [
        (FindingCode.ADDRESS_CACHE, "a:1")
    ]
    shares = findings[0].parameters
    assert shares["hit_share"] == pytest.approx(0.3, abs=0.05)
    assert shares["others_share"] == pytest.approx(0.7, abs=0.05)


def test_an_address_with_more_or_fewer_than_its_share_of_the_tokens_is_named() -> None:
    findings = found(sent(900, weights=(2, 1, 1), correlation=0.0))
    assert {finding.code for finding in findings} == {FindingCode.ADDRESS_IMBALANCE}
    shares = {finding.parameters["address"]: finding.parameters["tokens_share"] for finding in findings}
    assert shares["a:1"] == pytest.approx(0.5, abs=0.05)
    assert all(finding.parameters["equal_share"] == pytest.approx(1 / 3) for finding in findings)


def test_a_long_trial_does_not_warn_of_a_hundredth() -> None:
    requests = sent(
        6_000, ttft_s=lambda label, tokens: (0.02 + 1e-4 * tokens) * (1.03 if label == "b:2" else 1),
        tpot_s=lambda label: 0.0103 if label == "b:2" else 0.01, weights=(1, 1.05, 1),
        cached=lambda label: 0.45 if label == "b:2" else 0.5, correlation=0.0,
    )  # fmt: skip
    assert found(requests) == []


def test_equal_addresses_are_rarely_named() -> None:
    """More than 3 of 40 trials have a probability of 1e-3 if one in a hundred gets a warning of a kind."""
    named: Counter[FindingCode] = Counter()
    for seed in range(40):
        named.update({finding.code for finding in found(sent(240, cached=lambda _: 0.5, seed=seed))})
    assert max(named.values(), default=0) <= 3


def test_a_few_requests_are_no_evidence() -> None:
    assert found(sent(40, ttft_s=lambda label, _: 9.0 if label == "a:1" else 0.1)) == []


def test_failed_requests_and_other_engines_say_nothing() -> None:
    assert found([]) == []
    requests = [request for request in sent(300) if request.address == "a:1"]
    assert found(requests) == []


def page(label: str, kind: str, increases: dict[str, list[float]]) -> list[TelemetryRecord]:
    totals = {name: [0.0, *itertools.accumulate(steps)] for name, steps in increases.items()}
    records = [
        reading(0.5 * number, **{name: total[number] for name, total in totals.items()})
        for number in range(len(next(iter(totals.values()))))
    ]
    return [TelemetryRecord(record.t_ns, f"{kind} {label}", record.values) for record in records]


def replicas(rng: np.random.Generator, tokens: dict[str, float], hits: dict[str, float]) -> list[TelemetryRecord]:
    telemetry = page("r:9", "router", {"prompt_tokens_total": [1e6] * 120})
    for label, mean in tokens.items():
        prompts = (mean * rng.uniform(0.5, 1.5, 120)).tolist()
        answers = [prompt / 4 for prompt in prompts]
        found_tokens = [prompt * hits[label] * rng.uniform(0.8, 1.2) for prompt in prompts]
        telemetry += page(
            label, "server",
            {"prompt_tokens_total": prompts, "output_tokens_total": answers,
             "prefix_queries_tokens_total": prompts, "prefix_hits_tokens_total": found_tokens},
        )  # fmt: skip
    return telemetry


def test_behind_a_router_the_servers_own_pages_tell_tokens_and_hits() -> None:
    rng = np.random.default_rng(3)
    findings = found([], replicas(rng, {"a:1": 900, "b:2": 500}, {"a:1": 0.5, "b:2": 0.5}))
    assert [(f.code, f.parameters["address"]) for f in findings] == [
        (FindingCode.ADDRESS_IMBALANCE, "a:1"), (FindingCode.ADDRESS_IMBALANCE, "b:2"),
    ]  # fmt: skip
    findings = found([], replicas(rng, {"a:1": 700, "b:2": 700}, {"a:1": 0.5, "b:2": 0.2}))
    assert [(f.code, f.parameters["address"]) for f in findings] == [(FindingCode.ADDRESS_CACHE, "b:2")]
    assert found([], replicas(rng, {"a:1": 700, "b:2": 700}, {"a:1": 0.5, "b:2": 0.5})) == []


def test_they_are_warnings_that_do_not_invalidate_a_trial() -> None:
    requests = sent(600, tpot_s=lambda label: 0.02 if label == "c:3" else 0.01)
    verdict, findings = judge(Evidence(requests, [], Load(concurrency=3), WINDOW, 0.01))
    assert [f.code for f in findings if f.severity is Severity.WARNING] == [FindingCode.ADDRESS_SLOW]
    assert verdict is Verdict.VALID


def test_answers_without_the_header_of_their_replica_are_told():
    requests = [request(number, address="a" if number % 2 else None) for number in range(10)]
    given = Evidence(requests, [], Load(concurrency=1), Window(0, 10**10), 0.01, replica_header="x-replica")
    _, findings = judge(given)
    unnamed = [finding for finding in findings if finding.code is FindingCode.REPLICA_UNNAMED]
    assert [finding.parameters for finding in unnamed] == [{"unnamed": 5, "answered": 10, "header": "x-replica"}]
    _, findings = judge(msgspec.structs.replace(given, replica_header=None))
    assert not any(finding.code is FindingCode.REPLICA_UNNAMED for finding in findings)
