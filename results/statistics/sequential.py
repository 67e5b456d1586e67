"""Looking at the data before all of it is there, without crying wolf more often.

Each look may spend a part of alpha: after a share t of the runs, alpha · t³ in all (Kim & DeMets 1987), which keeps
nearly all power for the last look and still sees at half the runs what is twice as large as it must be. The levels are
those of a Brownian motion that leaves its bounds with just these probabilities (Armitage, McPherson & Rowe 1969,
integrated numerically); Student's t is held to the same levels, which for few runs is an approximation (Jennison &
Turnbull 2000, §4.4) whose error `benchmarks/statistics/verdicts.py` measures.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

_GRID = 1001
_POWER_OF_TIME = 3


def analysis_schedule(repeats: int, least: int = 3) -> list[int]:
    """After how many repeats to look: at half of them, and after each second one from there, the last included.

    Args:
        repeats: the budget.
        least: fewer show nothing.
    """
    first = max(least, math.ceil(repeats / 2))
    return sorted({*range(first, repeats, 2), repeats})


def nominal_levels(alpha: float, looks: Sequence[int]) -> list[float]:
    """The two-sided level of the test at each look, so that all looks together raise a false alarm with ``alpha``.

    Args:
        alpha: 0 < alpha < 1.
        looks: repeats after which the data are looked at, rising; the last is the budget.
    """
    return list(_levels(alpha, tuple(look / looks[-1] for look in looks)))


@functools.lru_cache(maxsize=64)
def _levels(alpha: float, shares: tuple[float, ...]) -> tuple[float, ...]:
    levels: list[float] = []
    places, density = np.zeros(1), np.ones(1)  # where the motion may be, and with what weight
    before, spent = 0.0, 0.0
    for share in shares:
        spend, spent = alpha * share**_POWER_OF_TIME - spent, alpha * share**_POWER_OF_TIME
        step = math.sqrt(share - before)
        bound = _bound(places, density, step, spend)
        levels.append(math.erfc(bound / math.sqrt(2 * share)))
        inside = np.linspace(-bound, bound, _GRID)
        weight = (inside[1] - inside[0]) * np.r_[0.5, np.ones(_GRID - 2), 0.5]
        distance = (inside[:, None] - places[None, :]) / step
        density = weight * (np.exp(-(distance**2) / 2) @ density) / (step * math.sqrt(2 * math.pi))
        places, before = inside, share
    return tuple(levels)


def _bound(places: np.ndarray, density: np.ndarray, step: float, spend: float) -> float:
    """How far out the motion must be for a share ``spend`` of it to be there after its next step."""
    from scipy.special import ndtr  # noqa: PLC0415  (scipy costs 0.2 s; --help must not pay)

    low, high = 0.0, 12.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        outside = float(density @ (ndtr((-middle - places) / step) + ndtr((places - middle) / step)))
        low, high = (middle, high) if outside > spend else (low, middle)
    return (low + high) / 2
