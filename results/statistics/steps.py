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
_ALIKE_SHARE = 0.02
"""Differences below this share of the median are none: a slow drift of a per cent would hide a step of any size."""
_SMALL_SHARE = 0.125
"""Noise of this share of the step cannot explain it, however slowly it wanders."""
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
    coarse = values / (_ALIKE_SHARE * max(float(np.median(np.abs(values))), float(np.finfo(float).tiny)))
    centred = ranks(np.round(coarse))
    places = np.arange(_LEAST, n - _LEAST + 1)
    sums = np.cumsum(centred)[places - 1]
    deviations = np.sqrt(places * (n - places) / (n - 1) * centred.var())
    scores = np.abs(sums) / np.where(deviations > 0, deviations, np.inf)
    best = int(np.argmax(scores))
    place = int(places[best])
    sides = values[:place], values[place:]
    before, after = (float(np.median(side)) for side in sides)
    small = abs(after - before) * _SMALL_SHARE
    noise = [ranks(_beyond(side, small)) / len(side) for side in sides]
    time = autocorrelation_time(np.concatenate(noise))
    return Step(place, float(scores[best]) / time**0.5, before, after)


def _beyond(side: Floats, small: float) -> Floats:
    """How far each value lies beyond the small noise around the median; 0 within it."""
    off = side - np.median(side)
    return np.sign(off) * np.maximum(np.abs(off) - small, 0.0)


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


def ranks(values: npt.NDArray[Any]) -> Floats:
    """Ranks less their mean, which is exact; equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places] - (len(values) + 1) / 2
