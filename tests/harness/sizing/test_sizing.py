"""Which GPUs keep an SLO: capacity, replicas, parallelism, order, and why the others fail."""

import pytest

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.cells import unpriced_text
from bakeoff.harness.sizing.gpus import gpu_table
from bakeoff.harness.sizing.model import load_model
from bakeoff.harness.sizing.plan import TYPICAL, Question, Sizing, make_plan, prices
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from bakeoff.harness.sizing.server import Limits, Request, poisson_s, simulate
from bakeoff.harness.sizing.sizing import Candidate, Server, Why, capacity_per_s, cheapest_first
from bakeoff.harness.sizing.step_times import StepTimes, StepWork
from bakeoff.results.errors import NotComparable
from bakeoff.results.metrics.objectives import objectives

SLO = "ttft_p90<500ms,itl_p90<50ms"


def sized(**options: object) -> list[Candidate]:
    made = make_plan(Question(**{"model": "llama-3.1-8b", "slo": SLO, "rate": 5.0, **options}))
    assert made.sizing is not None
    return made.sizing.candidates


@pytest.fixture(scope="module")
def h200() -> list[Candidate]:
    return sized(gpu=["h200"], rate=50.0)


def test_replicas_are_the_rate_over_what_one_keeps_up(h200: list[Candidate]):
    for candidate in h200:
        assert candidate.replicas == -(-50.0 // candidate.capacity_per_s)
        assert candidate.count == candidate.ranks * candidate.replicas
        assert candidate.values["ttft_p90_s"] < 0.5
        assert candidate.values["itl_p90_s"] < 0.05


LONG_ANSWERS = Request(16, 1000)


@pytest.fixture(scope="module")
def times() -> StepTimes:
    costs = load_model("smollm2-135m").costs(PRECISIONS["bf16"], CACHES["bf16"])
    return StepTimes(StepWork(costs), gpu_table()["h200"], PRECISIONS["bf16"], TYPICAL)


@pytest.fixture(scope="module")
def server(times: StepTimes) -> Server:
    return Server(times, Limits(), [LONG_ANSWERS], 1)


def test_requests_that_a_filling_server_answers_do_not_count(server: Server, times: StepTimes):
    rate = 0.95 * server.most_per_s
    requests = [Request(16, 1000, t) for t in poisson_s(rate, 8_000, 1)]
    steady = simulate(requests, times, Limits(), delays=TYPICAL.delays, warm_up_s=requests[4_000].arrival_s)
    assert server.open(rate).itl(0.5) == pytest.approx(steady.itl(0.5), rel=0.1)


def test_no_capacity_exceeds_the_throughput_of_a_full_server(server: Server):
    assert 0.95 * server.most_per_s < capacity_per_s(server, objectives("itl_p90<1s")) < server.most_per_s


def test_an_slo_that_only_requests_apart_from_each_other_keep_has_a_low_capacity(server: Server):
    alone_s = server.closed(1).itl(0.99)
    assert alone_s is not None
    capacity = capacity_per_s(server, objectives(f"itl_p99<{1.001 * alone_s * 1e6}us"))
    assert 0 < capacity < server.most_per_s / 64
    assert capacity_per_s(server, objectives(f"itl_p99<{0.9 * alone_s * 1e6}us")) == 0


def test_more_gpus_of_one_replica_keep_up_more_but_not_in_proportion(h200: list[Candidate]):
    by_ranks = {candidate.ranks: candidate.capacity_per_s for candidate in h200}
    assert by_ranks[1] < by_ranks[2] < by_ranks[4] < by_ranks[8]
    assert by_ranks[8] < 8 * by_ranks[1]


def test_a_tighter_slo_has_a_lower_capacity():
    def capacity(slo: str) -> float:
        return sized(gpu=["h200"], tensor_parallel=1, slo=slo)[0].capacity_per_s

    assert capacity("itl_p90<5.5ms") < capacity("itl_p90<20ms") < capacity("itl_p90<60ms")


def test_the_reason_why_a_gpu_fails_is_given():
    failed = {
        (candidate.gpu, candidate.ranks): candidate for candidate in sized(model="llama-3.1-70b", gpu=["a10g", "h200"])
    }
    assert failed["a10g", 1].failure is Why.DOES_NOT_FIT
    assert "one request needs" in failed["a10g", 1].detail
    assert failed["h200", 1].failure is Why.DOES_NOT_FIT
    assert failed["h200", 2].failure is None
    slow = sized(gpu=["a10g"], tensor_parallel=1, slo="itl_p50<10ms")[0]
    assert slow.failure is Why.TOO_SLOW_ALONE
    assert slow.detail.endswith("ms, itl_p50<10ms wanted")
    assert sized(model="qwen2.5-7b", gpu=["h200"], tensor_parallel=8)[0].failure is Why.CANNOT_SPLIT


def test_the_cheapest_is_first_and_failures_are_last():
    def candidate(gpu: str, price: float | None, watts: float, failure: Why | None = None) -> Candidate:
        return Candidate(gpu, 1, failure, price_per_hour=price, tdp_w=watts, replicas=1)

    priced = [candidate("a", 3.0, 1), candidate("b", 2.0, 9), candidate("c", None, 1, Why.DOES_NOT_FIT)]
    assert [c.gpu for c in cheapest_first(priced)] == ["b", "a", "c"]
    partly = [candidate("c", None, 2), candidate("a", 3.0, 5), candidate("b", None, 1)]
    ordered = cheapest_first(partly)
    assert [c.gpu for c in ordered] == ["a", "b", "c"]
    assert unpriced_text(Sizing([], 1.0, ordered)) == "last, without a --price: b, c"
    assert not unpriced_text(Sizing([], 1.0, ordered[1:]))


def test_prices_rank_and_are_summed():
    first, *_ = sized(gpu=["h200", "h100"], price=prices(["h200=1.5", "9"]))
    assert (first.gpu, first.price_per_hour) == ("h200", 1.5)


def test_prices_are_found_by_name_in_any_case_and_refused_for_unknown_gpus():
    (upper,) = sized(gpu=["h200"], tensor_parallel=1, price={"H200": 1.5})
    assert upper.price_per_hour == 1.5
    with pytest.raises(BadPlan, match="unknown GPU 'h300'; known: a10g, l40s"):
        sized(gpu=["h200"], price={"H300": 1.5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slo": SLO}, "--slo and --rate belong together"),
        ({"rate": 0.0, "slo": SLO}, "--rate must be above 0"),
        ({"input_tokens": 0}, "--input must be at least 1 token"),
        ({"cached_share": 1.0}, "--cached-share must be at least 0 and below 1"),
        ({"memory_fraction": 1.5}, "--memory-fraction must be above 0"),
        ({"engine": "vllm"}, "--engine names an engine of --from-run"),
        ({"from_run": ["x"]}, "--from-run needs --gpu"),
        ({"rate": 1.0, "slo": "goodput>1"}, "a plan cannot predict goodput_per_s"),
        ({"rate": 1.0, "slo": "attainment>0.9"}, "a plan cannot predict attainment"),
    ],
)
def test_questions_that_make_no_sense_are_refused(options: dict[str, object], message: str):
    with pytest.raises(BadPlan, match=message):
        make_plan(Question(**{"model": "smollm2-135m", **options}))


def test_malformed_objectives_and_prices_are_refused():
    with pytest.raises(NotComparable, match="is not an objective"):
        sized(gpu=["h200"], slo="fast")
    with pytest.raises(BadPlan, match="'h200=x' is not a price"):
        prices(["h200=x"])
