"""Several metrics at once: Holm's step-down correction (1979).

One primary metric is named beforehand and tested by itself. All others are guardrails: the chance that any of them
raises a false alarm stays at alpha, however many they are and however they depend on each other.
"""

from collections.abc import Mapping


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p values: one that is at most alpha rejects at alpha over the whole family.

    The k-th smallest of m is multiplied by m − k + 1, and none is smaller than the one before it.

    Args:
        p_values: by name.
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    for place, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_value))
        adjusted[name] = largest
    return adjusted
