"""Multiple metrics: Holm's step-down correction (1979).

One primary metric is chosen beforehand and tested alone. All others are guardrails: their family-wise error rate is
alpha, whatever their number and dependence.
"""

from collections.abc import Mapping


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm-adjusted p values; reject those at or below alpha.

    The k-th smallest of m is multiplied by m − k + 1, then made monotone.

    Args:
        p_values: by name of the metric.
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_value))
        adjusted[name] = largest
    return adjusted
