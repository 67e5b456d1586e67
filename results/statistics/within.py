"""Interval of a percentile within one trial, from the autocorrelation of its requests.

The interval covers what the same trial would have shown with more requests. It does not include the noise between
engine starts, so engines are never compared by it (see :mod:`bakeoff.results.statistics.interval`). Requests are not
independent: they wait in one queue, and the tokens of a response share its batches. The share of observations below a
value is a mean over requests, and its variance that of independent requests times the integrated autocorrelation time τ
of the requests' shares (Geyer: Practical Markov chain Monte Carlo, Statistical Science 7 (1992), 473–483). Slow
excursions of a queue show more in the order of the latencies than in the share below one value, so τ is the larger of
the two. The bounds are the percentiles at q plus and minus the error: they follow from the order alone, and are the
same on a log scale.
"""

import math

import numpy as np
from numpy.typing import NDArray

from bakeoff.results.statistics.clusters import Clusters
from bakeoff.results.statistics.distributions import t_quantile
from bakeoff.results.statistics.interval import Interval

MIN_BLOCKS = 20
"""Independent blocks, n / τ, that an interval needs. With fewer, τ itself is guesswork: a short part of a slow
excursion looks like a fast one."""
TIME_ERROR = 10.0
"""Relative error of τ, times the number of independent blocks."""


def own_interval(requests: Clusters, q: float, *, states: float = math.inf) -> Interval | None:
    """Percentile ``q`` of all observations with its 95 % interval.

    Args:
        requests: observations of each request, in planned order; possibly none, infinity for a failed request.
        q: 0 < q < 1.
        states: independent states of the requests in flight that the window holds, if known
            (:class:`bakeoff.results.metrics.relaxation.Relaxation`); there are no more blocks than that.

    Returns:
        ``n`` counts observations. None if there are fewer than :data:`MIN_BLOCKS` independent blocks.
    """
    observed = requests.present
    if len(observed.counts) < MIN_BLOCKS:
        return None
    pooled, counts = observed.values, observed.counts.astype(np.float64)
    centre = float(np.quantile(pooled, q, method="inverted_cdf"))
    below = observed.sums((pooled <= centre).astype(np.float64))
    excess = below - counts * below.sum() / counts.sum()
    ranks = _middle_ranks(observed.medians())
    time = max(autocorrelation_time(excess), autocorrelation_time(ranks))
    blocks = min(len(counts) / time, states)
    if blocks < MIN_BLOCKS:
        return None
    # what is shown is where τ came out small, so it is enlarged by about its own relative error
    enlarged = time * (1 + TIME_ERROR / blocks)
    error = math.sqrt(enlarged * len(excess) * float(excess.var())) / counts.sum()
    half = t_quantile(0.975, blocks - 1) * error
    if q - half <= 0 or q + half >= 1:
        return None
    low, high = (float(bound) for bound in np.quantile(pooled, (q - half, q + half), method="inverted_cdf"))
    value = float(np.quantile(pooled, q)) if math.isfinite(high) else centre
    if not math.isfinite(high):
        return Interval(value, None, None, len(pooled), "the upper bound lies among failures")
    return Interval(value, min(low, value), max(high, value), len(pooled))


def _middle_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank of each value; equal ones share the mean of theirs."""
    _, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[numbers]


def autocorrelation_time(series: NDArray[np.float64]) -> float:
    """Integrated autocorrelation time of a series, both sides, in its steps; at least 1.

    Geyer's initial monotone sequence, enlarged for the bias of autocorrelations around a sample's own mean.
    """
    n = len(series)
    centred = series - series.mean()
    spectrum = np.fft.rfft(centred, 2 * n)
    covariances = np.fft.irfft(spectrum * np.conj(spectrum))[: max(2, n // 3)]
    if covariances[0] <= 1e-12 * max(1.0, float(np.abs(series).max()) ** 2) * n:
        return 1.0
    correlations = covariances / covariances[0]
    pairs = correlations[: len(correlations) // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    initial = np.minimum.accumulate(pairs[: ends[0] if len(ends) else len(pairs)])
    time = max(1.0, 2 * float(initial.sum()) - 1)
    return time / (1 - min(0.9, time / n))
