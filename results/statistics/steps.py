"""The largest step of a series of observations in their order, and whether noise explains it.

For each place of the series the ranks of the observations before it are compared with those behind it (Wilcoxon's rank
sum, so that the shape of the noise and outliers do not count); the largest difference in standard deviations is that of
the most probable step (Pettitt, Applied Statistics 28 (1979), 126-135). Neighbours are alike where requests share a
queue or a batch, which makes large differences likelier: they are divided by the root of the integrated autocorrelation
time of the ranks within each side (Geyer's initial positive sequence, Statistical Science 7 (1992), 473-483), which the
step itself does not inflate.

Of series without a step, independent or first-order autoregressive up to a correlation of 0.95, one in a thousand has a
difference of more than 4.1 to 5.3 standard deviations, whatever its length (``benchmarks/statistics/steps.py``).
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MOST_DEVIATIONS = 5.0
"""Of series without a step, less than one in a thousand has a larger difference."""
_LEAST = 10
"""Observations on either side."""
Floats = npt.NDArray[np.float64]


class Step(NamedTuple):
    """The most probable step.

    Attributes:
        place: first observation behind it.
        deviations: the difference in standard deviations.
        before: median of the observations before it.
        after: median of those behind it.
    """

    place: int
    deviations: float
    before: float
    after: float


def largest_step(values: Floats) -> Step | None:
    """The most probable step of a series; None if it is too short."""
    n = len(values)
    if n < 2 * _LEAST:
        return None
    ranks = _ranks(values) - (n + 1) / 2
    places = np.arange(_LEAST, n - _LEAST + 1)
    sums = np.cumsum(ranks)[places - 1]
    deviations = np.sqrt(places * (n - places) / (n - 1) * ranks.var())
    scores = np.abs(sums) / np.where(deviations > 0, deviations, np.inf)
    best = int(np.argmax(scores))
    place = int(places[best])
    sides = [_ranks(side) / len(side) for side in (values[:place], values[place:])]
    time = autocorrelation_time(np.concatenate([side - side.mean() for side in sides]))
    before, after = (float(np.median(side)) for side in (values[:place], values[place:]))
    return Step(place, float(scores[best]) / time**0.5, before, after)


def autocorrelation_time(values: Floats) -> float:
    """Integrated autocorrelation time of a series with mean 0, at least 1: of so many values one is new."""
    n = len(values)
    variance = float((values * values).mean())
    if variance <= 0:
        return 1.0
    spectrum = np.fft.rfft(values, 2 * n)
    correlations = np.fft.irfft(spectrum * np.conj(spectrum))[: n // 4 + 1] / n / variance
    pairs = correlations[1:-1:2] + correlations[2::2][: len(correlations[1:-1:2])]
    ends = np.flatnonzero(pairs <= 0)
    positive = pairs[: ends[0]] if len(ends) else pairs
    return max(1.0, 1.0 + 2.0 * float(positive.sum()))


def _ranks(values: npt.NDArray[Any]) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places]
