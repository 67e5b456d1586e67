"""The interval of one trial's own percentile, against samples whose truth is known."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from bakeoff.results.statistics.clusters import Clusters
from bakeoff.results.statistics.within import MIN_BLOCKS, own_interval


def queue(rng: np.random.Generator, count: int, memory: float) -> NDArray[np.float64]:
    """Latencies of median 1 whose logs are correlated with the previous one, as in a queue."""
    noise = rng.normal(size=count) * math.sqrt(1 - memory**2)
    logs = np.empty(count)
    logs[0] = rng.normal()
    for i in range(1, count):
        logs[i] = memory * logs[i - 1] + noise[i]
    return np.exp(0.3 * logs)


def covered(samples: list[list[list[float]]]) -> float:
    intervals = [own_interval(Clusters.of(sample), 0.5) for sample in samples]
    return sum(
        interval is not None and (interval.low or 0) <= 1 <= (interval.high or 0) for interval in intervals
    ) / len(intervals)


@pytest.mark.parametrize(("count", "memory"), [(60, 0.0), (400, 0.5), (1000, 0.9)])
def test_it_holds_the_median_though_requests_wait_with_each_other(count: int, memory: float):
    rng = np.random.default_rng(1)
    samples = [[[value] for value in queue(rng, count, memory)] for _ in range(100)]
    assert covered(samples) >= 0.9


def test_tokens_of_an_answer_are_not_independent():
    """Answers differ by 20 %, the tokens of an answer by 10 %: 2,400 tokens are no more informative than 60 answers."""
    rng = np.random.default_rng(2)
    samples = [
        [list(math.exp(0.2 * rng.normal()) * np.exp(0.1 * rng.normal(size=40))) for _ in range(60)] for _ in range(100)
    ]
    assert covered(samples) >= 0.9
    widths = [
        (interval.high or 0) - (interval.low or 0)
        for sample in samples
        if (interval := own_interval(Clusters.of(sample), 0.5))
    ]
    assert np.median(widths) == pytest.approx(2 * 1.96 * 1.25 * 0.2 / math.sqrt(60), rel=0.3)


def test_equal_stretches_leave_no_doubt():
    """Each stretch holds 1, 2, 3: whichever stretches are drawn, the median is 2."""
    interval = own_interval(Clusters.of([[1.0, 2.0, 3.0]] * MIN_BLOCKS), 0.5)
    assert interval is not None
    assert (interval.low, interval.centre, interval.high, interval.n) == (2.0, 2.0, 2.0, 60)


def test_a_tail_is_less_certain_than_the_median():
    sample = [[value] for value in queue(np.random.default_rng(3), 2000, 0.0)]
    median, tail = own_interval(Clusters.of(sample), 0.5), own_interval(Clusters.of(sample), 0.99)
    assert median is not None
    assert tail is not None
    assert tail.centre == pytest.approx(np.quantile(sample, 0.99))
    assert (tail.high or 0) - (tail.low or 0) > 3 * ((median.high or 0) - (median.low or 0))


def test_requests_without_an_observation_count_for_nothing():
    full = [[1.0 + i / 100] for i in range(40)]
    assert own_interval(Clusters.of([*full[:20], [], *full[20:]]), 0.5) == own_interval(Clusters.of(full), 0.5)
    assert own_interval(Clusters.of(full[: MIN_BLOCKS - 1]), 0.5) is None
    assert own_interval(Clusters.of([]), 0.5) is None


def test_the_same_trial_has_the_same_interval():
    sample = [[value] for value in queue(np.random.default_rng(4), 100, 0.3)]
    assert own_interval(Clusters.of(sample), 0.5) == own_interval(Clusters.of(sample), 0.5)
