"""Draws that are the same everywhere: pinned, because a change would silently change every workload."""

import math
from collections import Counter

import pytest

from workloads.rng import Rng

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
