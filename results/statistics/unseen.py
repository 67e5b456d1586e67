"""Noise that the trials of a comparison cannot show, because all of a side share one start or one run.

Trials of a server that stayed up share its start: memory placement, the choice of kernels, neighbours. Trials of one
stored run share its hour. With a standard deviation s of that noise, k starts (runs) of A and m of B, the difference
has the variance SE² + s² (1/k + 1/m), of which only SE is seen. A verdict over what is seen holds up to some s, which
:func:`withstands` finds; under a known or assumed s :func:`under` gives the whole uncertainty, with Satterthwaite's
(1946) degrees of freedom, since s is taken as known. These grow with s, and an interval of few trials would shrink with
the first noise that is added: it is never narrower than what is seen.
"""

import math
from collections.abc import Callable
from enum import StrEnum

import msgspec

from bakeoff.results.statistics.distributions import t_quantile
from bakeoff.results.statistics.two_sample import Contrast

_LARGEST_SD = 10.0
"""On the scale of a log: a noise of e^10 is beyond any server."""
_MOST_DEGREES = 1e6
_PRECISION = 1e-3
"""Of a limit, relative."""


class NoiseSource(StrEnum):
    """Where noise comes from that trials may share."""

    STARTS = "starts"
    """Of a server that stayed up through all trials."""
    RUNS = "runs"
    """Of sides that were measured at different times, in too few runs."""


class Unseen(msgspec.Struct, frozen=True):
    """Noise that the trials do not show.

    Attributes:
        source: where it comes from.
        weight: variance that it gives the difference, over its own: 1/k + 1/m.
        sd: its standard deviation on the scale of the comparison, as measured or assumed; None if it is not counted.
        is_measured: whether ``sd`` is the floor of this machine.
    """

    source: NoiseSource
    weight: float
    sd: float | None = None
    is_measured: bool = False


def under(effect: Contrast, unseen: Unseen, sd: float, alpha: float) -> Contrast:
    """A contrast with unseen noise of a given standard deviation.

    Args:
        effect: over what is seen.
        unseen: the noise.
        sd: its standard deviation, on the scale of the contrast.
        alpha: level of the interval that is not to shrink.
    """
    seen, added = effect.standard_error**2, unseen.weight * sd**2
    if added == 0:
        return effect
    degrees = math.inf if seen == 0 else effect.degrees * ((seen + added) / seen) ** 2
    whole = msgspec.structs.replace(effect, standard_error=math.sqrt(seen + added), degrees=min(degrees, _MOST_DEGREES))
    return max(effect, whole, key=lambda each: t_quantile(1 - alpha / 2, each.degrees) * each.standard_error)


def withstands(effect: Contrast, unseen: Unseen, alpha: float, holds: Callable[[Contrast], bool]) -> float:
    """The largest standard deviation of the unseen noise under which a conclusion holds.

    Args:
        effect: over what is seen, from which the conclusion follows.
        unseen: the noise.
        alpha: level of the conclusion.
        holds: whether a contrast supports it.
    """
    low, high = 0.0, _LARGEST_SD
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(under(effect, unseen, middle, alpha)) else (low, middle)
    return low
