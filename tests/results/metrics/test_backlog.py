"""Whether an engine keeps up, on records of queues that are simulated here."""

import math
import random
from collections.abc import Callable, Iterator

import pytest

from bakeoff.results.metrics.backlog import Pressure, backlog
from bakeoff.results.records import Window
from bakeoff.results.requests import Requests
from tests.results.handmade import request
from tests.results.queues import LENGTH_S, WARM_S, Arrivals, cancelled_at, poisson, served, window_of


def bursts(rate: float, shape: float) -> Arrivals:
    """Gamma gaps; their coefficient of variation is shape^-1/2."""

    def arrivals(rng: random.Random) -> Iterator[float]:
        t_s = 0.0
        while (t_s := t_s + rng.gammavariate(shape, 1 / (rate * shape))) < WARM_S + LENGTH_S:
            yield t_s

    return arrivals


def on_off(rate: float) -> Arrivals:
    """10 s of three times the rate, 20 s of silence."""

    def arrivals(rng: random.Random) -> Iterator[float]:
        begin_s = -30 * rng.random()
        while begin_s < WARM_S + LENGTH_S:
            t_s = begin_s
            while (t_s := t_s + rng.expovariate(3 * rate)) < begin_s + 10:
                if 0 <= t_s < WARM_S + LENGTH_S:
                    yield t_s
            begin_s += 30

    return arrivals


def pressures(
    arrivals: Arrivals, service_s: Callable[[random.Random], float], servers: float, rate: float, count: int = 12
) -> list[Pressure]:
    window = Window(int(WARM_S * 1e9), int((WARM_S + LENGTH_S) * 1e9))
    found = []
    for seed in range(count):
        rng = random.Random(seed)
        times = list(arrivals(rng))
        requests = served(times, [service_s(rng) for _ in times], servers)
        found.append(backlog(Requests(requests), window, rate).pressure)
    return found


FIXED: Callable[[random.Random], float] = lambda _: 1.0  # noqa: E731
RANDOM: Callable[[random.Random], float] = lambda rng: rng.expovariate(1.0)  # noqa: E731


@pytest.mark.parametrize("arrivals", [poisson(3), bursts(3, 1 / 4), bursts(3, 1 / 16), on_off(2.5)])
@pytest.mark.parametrize(("median_s", "sigma"), [(4.0, 1.0), (0.1, 0.8), (8.0, 1.2)])
def test_an_engine_without_limit_is_never_saturated(arrivals: Arrivals, median_s: float, sigma: float):
    """The load begins without requests, so the longest answers still accumulate in its window."""
    found = pressures(arrivals, lambda rng: median_s * math.exp(sigma * rng.gauss(0, 1)), math.inf, 3.0, count=6)
    assert Pressure.SATURATED not in found
    assert set(found) == {Pressure.SUSTAINED} or median_s == 8.0


@pytest.mark.parametrize(("service_s", "servers"), [(FIXED, 4), (RANDOM, 4), (FIXED, 16)])
def test_a_server_at_half_its_capacity_sustains_its_load(service_s: Callable[[random.Random], float], servers: int):
    rate = 0.5 * servers
    assert set(pressures(poisson(rate), service_s, servers, rate)) == {Pressure.SUSTAINED}


@pytest.mark.slow
@pytest.mark.parametrize(("service_s", "servers"), [(FIXED, 4), (RANDOM, 4), (FIXED, 16)])
def test_no_overload_goes_unnoticed(service_s: Callable[[random.Random], float], servers: int):
    """At 110 % the verdict may be open; at 150 % it is not."""
    found = {share: pressures(poisson(share * servers), service_s, servers, share * servers) for share in (1.1, 1.5)}
    assert Pressure.SUSTAINED not in found[1.1]
    assert set(found[1.5]) == {Pressure.SATURATED}


@pytest.mark.parametrize(("service_s", "servers"), [(RANDOM, 1), (RANDOM, 4), (FIXED, 16)])
def test_requests_that_are_cancelled_at_the_end_count_as_waiting(
    service_s: Callable[[random.Random], float], servers: int
):
    """The harness ends a saturated trial at the end of its window, so a queue never gets its first tokens."""
    rate, length_s = 1.2 * servers, 1000 / (1.2 * servers)
    for seed in range(4):
        rng = random.Random(seed)
        times = list(poisson(rate, length_s)(rng))
        whole = served(times, [service_s(rng) for _ in times], servers)
        found = backlog(Requests(cancelled_at(WARM_S + length_s, whole)), window_of(length_s), rate)
        assert found.pressure is Pressure.SATURATED
        assert found.utilisation == pytest.approx(1.2, rel=0.15)


def test_bursts_that_the_engine_works_off_are_no_overload():
    """20 requests a second for 10 s, then silence: eight servers need 15 s more, and are ready for the next burst."""
    assert Pressure.SATURATED not in pressures(on_off(20 / 3), FIXED, 8, 20 / 3)


def test_an_open_verdict_says_how_many_requests_it_needs():
    rng = random.Random(6)
    times = list(poisson(4.4)(rng))
    window = Window(int(WARM_S * 1e9), int((WARM_S + LENGTH_S) * 1e9))
    found = backlog(Requests(served(times, [RANDOM(rng) for _ in times], 4)), window, 4.4)
    assert found.pressure is Pressure.UNCLEAR
    assert found.utilisation == pytest.approx(1.1, abs=0.25)
    assert found.needed_requests is not None
    assert found.needed_requests > found.requests > 100


def test_prompts_of_different_lengths_are_no_queue():
    """A prefill that takes as long as the prompt says, on an engine without limit."""
    rng = random.Random(1)
    records = []
    for number, t_s in enumerate(poisson(3)(rng)):
        tokens = rng.choice((100, 2000, 8000))
        first_s = t_s + tokens / 8000
        records.append(request(1000 * t_s, [1000 * first_s, 1000 * (first_s + 1)], index=number, prompt_tokens=tokens))
    window = Window(int(WARM_S * 1e9), int((WARM_S + LENGTH_S) * 1e9))
    found = backlog(Requests(records), window, 3.0)
    assert (found.pressure, found.seen_share < 0.2) == (Pressure.SUSTAINED, True)


def test_too_few_requests_say_nothing():
    assert backlog(Requests([request(0, [1, 2])]), Window(0, 10**10), 1.0).pressure is Pressure.SUSTAINED
