"""Draws are the same on every machine; they are pinned, because a change would silently change every workload."""

import itertools
import math
from collections import Counter

import pytest
from scipy.stats import gamma, kstest, weibull_min

from bakeoff.workloads.rng import Rng, Seed

DRAWS = 20_000


def test_the_first_draws_of_a_named_stream_never_change() -> None:
    rng = Rng("7", "chat", "lengths")
    assert [rng.uniform() for _ in range(3)] == [0.3795748395905776, 0.6001897908906342, 0.885308821441318]


def test_streams_are_told_apart_by_every_part_of_their_name() -> None:
    names = [("7",), ("8",), ("7", "chat"), ("7", "random"), ("7", "chat", "text", "0"), ("7", "chat", "text", "1")]
    assert len({Rng(*name).uniform() for name in names}) == len(names)
    assert Rng("7", "chat").uniform() == Rng("7", "chat").uniform()


def test_uniform_fills_the_unit_interval_evenly() -> None:
    rng = Rng("uniform")
    draws = [rng.uniform() for _ in range(DRAWS)]
    assert 0 <= min(draws) < 0.001
    assert 0.999 < max(draws) < 1
    assert sum(draws) / DRAWS == pytest.approx(0.5, abs=0.01)


def test_below_gives_each_integer_its_share_and_none_else() -> None:
    rng = Rng("below")
    shares = Counter(rng.below(5) for _ in range(DRAWS))
    assert sorted(shares) == [0, 1, 2, 3, 4]
    assert all(share == pytest.approx(DRAWS / 5, rel=0.05) for share in shares.values())


def test_choice_reaches_the_first_and_the_last_item() -> None:
    rng = Rng("choice")
    assert {rng.choice("abc") for _ in range(200)} == set("abc")


def test_exponential_has_its_mean_and_its_tail() -> None:
    rng = Rng("exponential")
    draws = [rng.exponential(3.0) for _ in range(DRAWS)]
    assert min(draws) >= 0
    assert sum(draws) / DRAWS == pytest.approx(3.0, rel=0.03)
    assert sum(draw > 6.0 for draw in draws) / DRAWS == pytest.approx(math.exp(-2), rel=0.1)


def test_normal_is_standard_and_independent_of_its_neighbours() -> None:
    rng = Rng("normal")
    draws = [rng.normal() for _ in range(DRAWS)]
    # Standard errors: mean 0.007, square 0.010, shares 0.002 and 0.0011, product of neighbours 0.007.
    assert sum(draws) / DRAWS == pytest.approx(0.0, abs=0.03)
    assert sum(draw * draw for draw in draws) / DRAWS == pytest.approx(1.0, abs=0.04)
    assert sum(draw > 1 for draw in draws) / DRAWS == pytest.approx(0.1587, abs=0.011)
    assert sum(draw < -2 for draw in draws) / DRAWS == pytest.approx(0.0228, abs=0.005)
    assert sum(a * b for a, b in itertools.pairwise(draws)) / DRAWS == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("shape", [0.05, 0.25, 1.0, 2.5, 40.0])
def test_gamma_follows_its_distribution(shape: float) -> None:
    rng = Rng("gamma")
    draws = [rng.gamma(shape) for _ in range(DRAWS)]
    assert min(draws) >= 0
    # The mean's standard error is √(shape/n); 1.95/√n is the Kolmogorov-Smirnov distance passed once in 1,000 times.
    assert sum(draws) / DRAWS == pytest.approx(shape, abs=4 * math.sqrt(shape / DRAWS))
    assert kstest(draws, gamma(shape).cdf).statistic < 1.95 / math.sqrt(DRAWS)


@pytest.mark.parametrize("shape", [0.3, 1.0, 3.0])
def test_weibull_follows_its_distribution(shape: float) -> None:
    rng = Rng("weibull")
    draws = [rng.weibull(shape) for _ in range(DRAWS)]
    assert kstest(draws, weibull_min(shape).cdf).statistic < 1.95 / math.sqrt(DRAWS)


def test_the_first_draws_of_each_kind_never_change() -> None:
    draws = Rng("7", "kinds")
    assert [draws.normal(), draws.gamma(0.5), draws.gamma(3.0), draws.weibull(2.0)] == pytest.approx(
        [1.6352950377655224, 0.13004443930520146, 2.2349326253884714, 1.1096296806185262], rel=1e-12
    )


def test_a_seed_has_one_stream_for_traffic_and_one_for_words() -> None:
    seed = Seed("7", "7/2")
    assert seed.draws("chat", "3").uniform() == Rng("7", "chat", "3").uniform()
    assert seed.wording("chat", "3").uniform() == Rng("7/2", "chat", "3").uniform()
    assert Seed.of("7") == Seed("7", "7")
