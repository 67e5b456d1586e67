"""The best of several settings: which ones cannot be told apart from it, and how much of its lead is luck.

The best is chosen for its figure, so it is compared with the others by the studentised range: of k equal settings at
least one falls outside its interval in as many experiments as the level says, however many settings there are (Tukey
1953; Kramer 1956 for unequal numbers). Intervals for one pair would lose some of twelve equal settings in half of the
experiments.

The figure of the best is too good by the luck for which it was chosen. Shrinking each mean towards their mean by the
part of their variation that noise explains (James and Stein 1961, positive part) takes it off on average.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bakeoff.results.statistics.distributions import range_quantile

Floats = npt.NDArray[np.float64]
_MIN_SETTINGS = 4
"""With fewer, shrinking towards a mean that is estimated gains nothing."""


class Means(msgspec.Struct, frozen=True):
    """Means of settings with their noise, pooled over all of them.

    Attributes:
        centres: [settings].
        errors: [settings], standard error of each.
        degrees: of freedom of these; 0 if they are unknown, and then not a number.
    """

    centres: Floats
    errors: Floats
    degrees: int


def means_of(settings: Sequence[Mapping[int, float]]) -> Means:
    """Means of settings that were measured in repeats, whose state of the machine they share.

    The noise is the residual of the settings and the repeats, or, where repeats are missing, that within settings.

    Args:
        settings: repeat → observation, at least one in each.
    """
    repeats = sorted({repeat for each in settings for repeat in each})
    observed = [np.array(list(each.values())) for each in settings]
    counts, centres = np.array([len(values) for values in observed]), np.array([values.mean() for values in observed])
    if (counts == len(repeats)).all():
        table = np.array([[each[repeat] for repeat in repeats] for each in settings])
        residuals = table - centres[:, None] - table.mean(0) + table.mean()
        degrees = (len(settings) - 1) * (len(repeats) - 1)
        squares = float((residuals**2).sum())
    else:
        degrees = int((counts - 1).sum())
        squares = sum(float(((values - values.mean()) ** 2).sum()) for values in observed)
    return Means(centres, np.sqrt((squares / degrees if degrees else math.nan) / counts), degrees)


def beside(means: Means, best: int, family: int, confidence: float) -> list[tuple[float, float, float]]:
    """Difference of each setting from the best one, with its bounds.

    Args:
        means: of the settings, with known noise.
        best: position of the best.
        family: number of figures among which the best was chosen; at least the number of settings.
        confidence: of all intervals together, 0 < c < 1.
    """
    quantile = range_quantile(confidence, family, means.degrees) / math.sqrt(2)
    found: list[tuple[float, float, float]] = []
    for centre, error in zip(means.centres, means.errors, strict=True):
        difference = float(centre - means.centres[best])
        half = quantile * math.hypot(float(error), float(means.errors[best]))
        found.append((difference, difference - half, difference + half))
    return found


def shrunk(means: Means) -> Floats:
    """The means without the luck for which one of them may be chosen, [settings]; as they are if there are few."""
    spread, count = float(means.centres.var(ddof=1)) if len(means.centres) > 1 else 0.0, len(means.centres)
    if count < _MIN_SETTINGS or not means.degrees or spread == 0:
        return means.centres
    noise = float((means.errors**2).mean()) * (count - 3) / (count - 1) / spread
    middle = means.centres.mean()
    return middle + max(0.0, 1 - noise) * (means.centres - middle)
