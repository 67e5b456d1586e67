"""Distributions: quantiles, draws and means agree for every family; tables keep modes and gaps."""

import math
import tomllib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads.distributions import (
    Distribution,
    Exponential,
    Fixed,
    Lognormal,
    Mixture,
    Part,
    Quantiles,
    Uniform,
    Weibull,
    ks_distance,
    quantiles_of,
)
from bakeoff.workloads.errors import BadOption
from bakeoff.workloads.options import typed_options
from bakeoff.workloads.rng import Rng

DRAWS = 20_000
KS_LIMIT = 1.95 / math.sqrt(DRAWS)
"""The distance that a sample exceeds once in 1,000 times, compared with its own distribution."""
TWO_MODES = Quantiles((0, 0.3, 0.6, 0.600001, 1), (10, 20, 20, 400, 420))
FAMILIES: list[Distribution] = [
    TWO_MODES,
    Lognormal(4.86, 1.72),
    Lognormal(8.74, 1.20, min=900, max=126_000),
    Exponential(15.0, min=2.0, max=40.0),
    Weibull(0.5, 3.0),
    Weibull(1.2, 360.0, min=10.0, max=500.0),
    Uniform(-1.0, 3.0),
    Fixed(7.0),
    Mixture((Part(3.0, Fixed(5.0)), Part(1.0, Uniform(0.0, 10.0)), Part(1.0, Lognormal(2.0, 1.0)))),
]


class Options(msgspec.Struct, frozen=True):
    """A workload's options that contain a distribution."""

    length: Distribution


def read(data: dict[str, object]) -> Distribution:
    return typed_options(Options, {"length": data}, "workload 'x'", BadOption).length


each_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)


def draws(family: Distribution, count: int = DRAWS) -> list[float]:
    rng = Rng("7", "draws")
    return [family.sample(rng) for _ in range(count)]


@each_family
@given(p=st.floats(0, 1), q=st.floats(0, 1))
def test_quantiles_do_not_fall_and_shares_are_their_inverse(family: Distribution, p: float, q: float) -> None:
    low, high = family.at(min(p, q)), family.at(max(p, q))
    assert low <= high
    assert family.share_up_to(low) >= min(p, q) - 1e-9
    assert family.share_up_to(math.nextafter(family.at(0), -math.inf)) == 0


@each_family
def test_draws_follow_the_shares(family: Distribution) -> None:
    places, counts = np.unique(draws(family), return_counts=True)
    shares = [family.share_up_to(x) for x in places.tolist()]
    assert np.abs(np.cumsum(counts) / DRAWS - shares).max() < KS_LIMIT


@pytest.mark.parametrize("family", FAMILIES[:-1], ids=repr)
def test_draws_follow_the_quantiles(family: Distribution) -> None:
    assert ks_distance(draws(family), family) < KS_LIMIT
    assert ks_distance([draw * 1.1 for draw in draws(family)], family) > KS_LIMIT


@pytest.mark.slow
@each_family
def test_the_mean_is_that_of_the_quantiles(family: Distribution) -> None:
    """Compared with a plain sum over evenly spaced levels, which misses part of the heavy tails."""
    levels = 2_000 if isinstance(family, Mixture) else 100_000
    plain = sum(family.at((i + 0.5) / levels) for i in range(levels)) / levels
    assert family.mean() == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(
    ("family", "mean"),
    [
        (Exponential(15.0), 15.0),
        (Exponential(15.0, min=2.0, max=40.0), 2 + 15 * (math.exp(-2 / 15) - math.exp(-40 / 15))),
        (Lognormal(1.0, 0.5), math.exp(1.125)),
        (Weibull(0.5, 3.0), 6.0),
        (Quantiles((0, 0.5, 1), (10, 20, 40)), 22.5),
        (Uniform(1.0, 4.0), 2.5),
    ],
    ids=repr,
)
def test_means_are_those_of_the_textbook(family: Distribution, mean: float) -> None:
    assert family.mean() == pytest.approx(mean, rel=1e-4)


def test_between_the_knots_the_table_is_linear() -> None:
    table = Quantiles((0, 0.5, 1), (10, 20, 40))
    assert [table.at(p) for p in (0, 0.25, 0.5, 0.75, 1)] == [10, 15, 20, 30, 40]
    assert [table.share_up_to(x) for x in (9, 10, 15, 30, 40)] == [0, 0, 0.25, 0.75, 1]


def test_a_mass_point_belongs_to_its_value_and_a_gap_to_none() -> None:
    assert TWO_MODES.share_up_to(19.999) == pytest.approx(0.3, abs=1e-4)
    assert TWO_MODES.share_up_to(20) == 0.6
    assert TWO_MODES.share_up_to(399) == pytest.approx(0.6, abs=1e-5)
    assert Quantiles((0, 0.4, 1), (5, 5, 9)).share_up_to(5) == 0.4


def test_what_is_clipped_lies_at_the_ends() -> None:
    clipped = Exponential(10.0, min=5.0, max=20.0)
    sample = draws(clipped)
    assert (min(sample), max(sample)) == (5.0, 20.0)
    assert sample.count(20.0) / DRAWS == pytest.approx(math.exp(-2), abs=0.01)
    assert (clipped.share_up_to(4.999), clipped.share_up_to(20.0)) == (0.0, 1.0)


def test_a_file_names_the_family() -> None:
    text = """
    parts = [
      { share = 3, distribution = { family = "exponential", mean = 15, max = 60 } },
      { share = 1, distribution = { family = "quantiles", levels = [0, 1], values = [1, 2] } },
    ]
    """
    mixed = read({"family": "mixture", **tomllib.loads(text)})
    assert mixed == Mixture((Part(3.0, Exponential(15.0, max=60.0)), Part(1.0, Quantiles((0, 1), (1, 2)))))


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_every_family_survives_a_file(family: Distribution) -> None:
    assert msgspec.json.decode(msgspec.json.encode(family), type=Distribution) == family


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"family": "quantiles", "levels": [0, 0.5, 0.5, 1], "values": [1, 2, 3, 4]}, "levels must increase"),
        ({"family": "quantiles", "levels": [0, 0.5], "values": [1, 2]}, "begin with 0 and end with 1"),
        ({"family": "quantiles", "levels": [0, 1], "values": [2, 1]}, "values must not decrease"),
        ({"family": "quantiles", "levels": [0, 1], "values": [2, math.inf]}, "values must be finite"),
        ({"family": "quantiles", "levels": [0, 1], "values": [2]}, "as many values as levels"),
        ({"family": "lognormal", "mu": 1, "sigma": 0}, "sigma must be above 0, not 0"),
        ({"family": "lognormal", "mu": math.nan, "sigma": 1}, "mu must be finite"),
        ({"family": "exponential", "mean": -1}, "mean must be above 0, not -1"),
        ({"family": "exponential", "mean": 1, "min": 3, "max": 2}, "min not above max, not 3.0 and 2.0"),
        ({"family": "weibull", "shape": 0, "scale": 1}, "shape must be above 0"),
        ({"family": "uniform", "low": 2, "high": 1}, "low must be below high"),
        ({"family": "fixed", "value": math.inf}, "value must be finite"),
        ({"family": "mixture", "parts": []}, "at least one part"),
        ({"family": "fixed", "value": "7"}, "Expected `float`, got `str`"),
        ({"family": "lognorml", "mu": 1}, "length needs family, one of quantiles, lognormal"),
        ({"mean": 1}, "length needs family, one of quantiles, lognormal"),
        ({"family": "exponential", "meen": 1}, "length has no option 'meen'; did you mean 'mean'"),
    ],
)
def test_what_cannot_be_a_distribution_is_refused_in_one_line(data: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadOption) as caught:
        read(data)
    assert str(caught.value).startswith("workload 'x'")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0, -1.0, math.inf])
def test_a_part_needs_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="share must be above 0"):
        Part(share, Fixed(1.0))


def token_like() -> np.ndarray:
    """20,000 lengths as services have them: two modes with a gap between, a cap that many reach, small integers."""
    rng = Rng("7", "token-like")
    low = [round(min(max(rng.normal() * 15 + 95, 20), 160)) for _ in range(8_000)]
    high = [round(rng.normal() * 12 + 400) for _ in range(7_000)]
    small = [6 + rng.below(5) for _ in range(4_000)]
    return np.array(low + high + small + [7_436] * 1_000)


def test_a_table_is_near_its_sample_and_small() -> None:
    sample = token_like()
    table = quantiles_of(sample)
    assert len(table.levels) <= 64
    assert ks_distance(sample, table) < 0.0101
    assert (table.at(0), table.at(1)) == (sample.min(), sample.max())
    assert ks_distance(np.round(draws(table)), sample) < 0.01 + KS_LIMIT


def test_a_table_keeps_mass_points_and_gaps() -> None:
    sample = token_like()
    table = quantiles_of(sample)
    for x in (6, 8, 10, 7_436):
        mass = table.share_up_to(x) - table.share_up_to(math.nextafter(x, 0))
        assert mass == pytest.approx((sample == x).mean(), abs=0.02)
    assert table.share_up_to(340) - table.share_up_to(170) < 0.01


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_a_table_of_any_sample_is_one(sample: list[float]) -> None:
    table = quantiles_of(sample)
    assert (table.at(0), table.at(1)) == (min(sample), max(sample))
    if len(table.levels) < 64:
        assert ks_distance(sample, table) < 0.0101


def test_a_table_of_a_smooth_sample_has_its_mean() -> None:
    sample = draws(Lognormal(2.79, 0.85))
    assert quantiles_of(sample).mean() == pytest.approx(np.mean(sample), rel=0.02)


def test_the_distance_of_two_samples_is_exact() -> None:
    assert ks_distance([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert ks_distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert ks_distance([1, 1, 1], [2]) == 1
    assert ks_distance([1, 1, 1], Fixed(1.0)) == 0
    assert ks_distance([2, 2, 2], Fixed(1.0)) == pytest.approx(1.0, abs=1e-4)
    assert ks_distance([0.25, 0.75], Uniform(0.0, 1.0)) == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("sample", [[], [1.0, math.nan], [math.inf]])
def test_a_sample_without_values_or_with_what_is_none_is_refused(sample: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value, and every value must be finite"):
        quantiles_of(sample)


def test_a_rank_correlated_pair_can_be_drawn() -> None:
    """The purpose of quantiles: normal draws of correlation r, each mapped through its own distribution."""
    rng = Rng("pair")
    a, b = Lognormal(6.0, 1.0), Exponential(200.0)
    pairs: list[tuple[float, float]] = []
    for _ in range(5_000):
        x, y = rng.normal(), rng.normal()
        y = 0.8 * x + 0.6 * y
        levels = [0.5 * math.erfc(-z / math.sqrt(2)) for z in (x, y)]
        pairs.append((a.at(levels[0]), b.at(levels[1])))
    firsts, seconds = (np.argsort(np.argsort(side)) for side in zip(*pairs, strict=True))
    assert np.corrcoef(firsts, seconds)[0, 1] == pytest.approx(6 / math.pi * math.asin(0.4), abs=0.03)
    assert ks_distance([second for _, second in pairs], b) < 1.95 / math.sqrt(5_000)


def test_the_first_draws_of_each_family_never_change() -> None:
    assert [draws(family, 1)[0] for family in FAMILIES] == pytest.approx(
        [20.0, 53.950582634, 3400.492970793, 5.481401339, 0.400610142, 155.585619291, 0.224398154, 7.0, 5.0], abs=1e-9
    )
