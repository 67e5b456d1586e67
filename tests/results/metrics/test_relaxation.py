"""How long requests in flight remember, on records of queues and of a batching server that are simulated here."""

import random
from collections.abc import Callable

import pytest

from bakeoff.results.metrics.relaxation import Relaxation, needed_window_s, relaxation
from bakeoff.results.records import RequestRecord
from bakeoff.results.requests import Requests
from tests.results.handmade import request
from tests.results.queues import LENGTH_S, WARM_S, cancelled_at, poisson, served, window_of

Service = Callable[[random.Random], float]
FIXED: Service = lambda _: 1.0  # noqa: E731
RANDOM: Service = lambda rng: rng.expovariate(1.0)  # noqa: E731
SEEDS = range(12)


def queued(service_s: Service, servers: int, load: float, seed: int, length_s: float = LENGTH_S) -> list[RequestRecord]:
    rng = random.Random(seed)
    times = list(poisson(load * servers, length_s)(rng))
    return served(times, [service_s(rng) for _ in times], servers)


def batched(rate: float, seed: int, *, row_s: float = 0.0024, step_s: float = 0.02, tokens: int = 40):
    """Each step gives every answer one token, and takes longer the more answers there are."""
    arrivals, now_s, running, done = list(poisson(rate)(random.Random(seed))), 0.0, [], []
    while arrivals or running:
        if not running:
            now_s = max(now_s, arrivals[0])
        while arrivals and arrivals[0] <= now_s:
            running.append((arrivals.pop(0), []))
        now_s += step_s + row_s * len(running)
        for arrival_s, times in running:
            times.append(now_s)
            if len(times) == tokens:
                done.append((arrival_s, times))
        running = [one for one in running if len(one[1]) < tokens]
    return [request(1000 * t_s, [1000 * t for t in times], index=i) for i, (t_s, times) in enumerate(sorted(done))]


def short(found: list[Relaxation | None]) -> int:
    return sum(one is not None and one.is_window_short for one in found)


@pytest.mark.parametrize("service_s", [FIXED, RANDOM])
def test_near_capacity_a_window_of_thirty_seconds_is_short(service_s: Service):
    """Where services vary, 110 departures tell the load only to 10 %, and some windows pass for longer ones."""
    found = [relaxation(Requests(queued(service_s, 4, 0.95, seed)), window_of(), 3.8) for seed in SEEDS]
    assert short(found) >= 0.5 * len(found)


@pytest.mark.parametrize(("service_s", "servers", "load"), [
    (FIXED, 4, 0.5), (RANDOM, 4, 0.5), (FIXED, 16, 0.5), (FIXED, 4, 0.65), (RANDOM, 8, 0.6),
])  # fmt: skip
def test_below_it_the_window_is_long_enough(service_s: Service, servers: int, load: float):
    found = [
        relaxation(Requests(queued(service_s, servers, load, seed)), window_of(), load * servers) for seed in SEEDS
    ]
    assert short(found) <= 1


def test_the_memory_of_a_queue_is_that_of_a_random_walk():
    """M/D/4 at 90 %: c_a² + c_s² = 1, µ = 4, so 1 / (4 × 0.1²) = 25 s; 600 s hold 24 states."""
    requests = queued(FIXED, 4, 0.9, 3, length_s=600)
    rate = sum(r.planned_ns >= WARM_S * 1e9 for r in requests) / 600
    found = relaxation(Requests(requests), window_of(600), rate)
    assert found is not None
    assert found.memory_s == pytest.approx(1 / (4 * (1 - rate / 4) ** 2), rel=0.3)
    assert not found.is_window_short
    assert needed_window_s(found) == 5 * found.memory_s


def test_an_engine_that_batches_relaxes_more_slowly_than_its_answers():
    """40 tokens of 20 + 2.4 N ms at 8.3 /s: λ n b = 0.8, so the memory is ten service times."""
    requests = batched(8.3, 1)
    found = relaxation(Requests(requests), window_of(), 8.3)
    assert found is not None
    inside = [r for r in requests if r.planned_ns >= WARM_S * 1e9]
    service_s = sum(r.ended_ns - r.planned_ns for r in inside) / 1e9 / len(inside)
    assert found.memory_s == pytest.approx(10 * service_s, rel=0.15)
    assert found.is_window_short
    assert relaxation(Requests(batched(4.0, 1)), window_of(), 4.0) is None, "lightly loaded"


def test_answers_without_a_queue_and_few_requests_have_no_memory():
    rng = random.Random(2)
    times = list(poisson(3.0)(rng))
    assert (
        relaxation(Requests(served(times, [rng.lognormvariate(1, 1) for _ in times], 1_000)), window_of(), 3.0) is None
    )
    assert relaxation(Requests(served(times[:9], [1.0] * 9, 1)), window_of(), 3.0) is None
    assert relaxation(Requests([]), window_of(), 3.0) is None


def test_a_window_whose_own_requests_all_wait_to_its_end_shows_no_service():
    """Four times the capacity: the window serves only what was planned before it."""
    times = [0.25 * number for number in range(int((WARM_S + LENGTH_S) / 0.25))]
    whole = served(times, [1.0 for _ in times], 1)
    assert relaxation(Requests(cancelled_at(WARM_S + LENGTH_S, whole)), window_of(), 4.0) is None
