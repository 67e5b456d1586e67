"""A against B: a ratio, its interval, and one of four words.

Trials are paired by load level and repeat (both sides were sent the same bytes), so what the repeats share cancels.
The ratio is exp(mean of log B - log A) with Student's t interval on those differences.
"""

import statistics
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from results.metrics.catalogue import Better, Metric, Unit
from results.statistics.interval import Interval, log_t_interval


class Judgement(StrEnum):
    """What the interval says of B."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """The whole interval lies inside the equivalence band."""
    UNCLEAR = "unclear"


class Comparison(msgspec.Struct, frozen=True):
    """One metric at one load level.

    Attributes:
        metric: its name.
        level: the load level's label.
        ratio: B over A with its interval.
        judgement: the word.
        why: what the word rests on, or what is missing.
    """

    metric: str
    level: str
    ratio: Interval | None
    judgement: Judgement
    why: str


def compare_paired(
    metric: Metric,
    level: str,
    a: Mapping[int, float],
    b: Mapping[int, float],
    *,
    confidence: float = 0.99,
    band: float = 0.03,
    error: float = 0.0,
) -> Comparison:
    """Compare one metric of B with that of A.

    Args:
        metric: says which way is better.
        level: label of the load level.
        a: repeat number → value.
        b: the same for the candidate.
        confidence: of the interval.
        band: half-width of the equivalence band as a share: ``same`` means within ± band.
        error: of the instrument, in the metric's unit: a difference of the centres within it is none.
    """
    shared = sorted(repeat for repeat in a.keys() & b.keys() if a[repeat] > 0 and b[repeat] > 0)
    ratio = log_t_interval([b[repeat] / a[repeat] for repeat in shared], confidence)
    if ratio is None or ratio.low is None or ratio.high is None:
        why = f"needs 2 paired repeats, there are {len(shared)}"
        return Comparison(metric.name, level, ratio, Judgement.UNCLEAR, why)
    word, why = _judge(metric, ratio, confidence, band)
    difference = abs(ratio.centre - 1) * statistics.geometric_mean(a[repeat] for repeat in shared)
    if word in {Judgement.BETTER, Judgement.WORSE} and difference <= error:
        shown, known = _quantity(metric, difference), _quantity(metric, error)
        word, why = Judgement.UNCLEAR, f"the difference of {shown} is within the client's own error of ± {known}"
    return Comparison(metric.name, level, ratio, word, why)


def _judge(metric: Metric, ratio: Interval, confidence: float, band: float) -> tuple[Judgement, str]:
    assert ratio.low is not None
    assert ratio.high is not None
    if ratio.low >= 1 - band and ratio.high <= 1 + band:
        return Judgement.SAME, f"the whole {confidence:.0%} interval lies within ±{band:.0%}"
    if ratio.low <= 1 <= ratio.high:
        return Judgement.UNCLEAR, f"the {confidence:.0%} interval holds 1; more repeats would narrow it"
    higher = ratio.low > 1
    improved = higher == (metric.better is Better.HIGHER)
    word = Judgement.BETTER if improved else Judgement.WORSE
    return word, f"the {confidence:.0%} interval of {ratio.n} pairs leaves 1 out"


def _quantity(metric: Metric, value: float) -> str:
    if metric.unit is not Unit.SECONDS:
        return f"{value:.3g} {metric.unit.value}".rstrip()
    return f"{value * 1e3:.2g} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"
