"""Means over requests of sessions, with their sampling error."""

import math
from collections import defaultdict
from collections.abc import Iterable


def clustered_mean(values: Iterable[tuple[str, float]]) -> tuple[float, float]:
    """Mean of values that are alike within a cluster, and its standard error.

    The clusters are the sampling units: with their sums ``S`` of deviations from the mean and ``g`` clusters,
    SE² = g / (g − 1) · Σ S² / n² (Cochran, Sampling Techniques, 1977, ch. 9A). The error of one cluster is infinite.

    Args:
        values: cluster and value, at least one.
    """
    pairs = list(values)
    mean = sum(value for _, value in pairs) / len(pairs)
    sums: dict[str, float] = defaultdict(float)
    for cluster, value in pairs:
        sums[cluster] += value - mean
    clusters = len(sums)
    if clusters < 2:
        return mean, math.inf
    return mean, math.sqrt(clusters / (clusters - 1) * sum(total * total for total in sums.values())) / len(pairs)
