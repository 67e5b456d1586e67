"""Group-sequential tests: interim analyses under an alpha-spending function.

After a fraction t of the runs, at most alpha · t³ is spent (Kim & DeMets 1987). This keeps nearly all power for the
final analysis and still detects, at half the runs, effects twice as large as the smallest detectable one. The nominal
levels are those of a Brownian motion that crosses its bounds with these probabilities (Armitage, McPherson & Rowe 1969,
integrated numerically). Student's t is tested at the same levels, an approximation for few runs (Jennison & Turnbull
2000, §4.4) whose error ``benchmarks/statistics/verdicts.py`` measures.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

_GRID = 1001
_POWER_OF_TIME = 3


def analysis_schedule(repeats: int, least: int = 3) -> list[int]:
    """Repeats after which to analyse: from half of them, every second one, and the last.

    Args:
        repeats: planned in all.
        least: minimum of repeats for an analysis.
    """
    first = max(least, math.ceil(repeats / 2))
    return sorted({*range(first, repeats, 2), repeats})


def nominal_levels(alpha: float, repeats_analysed: Sequence[int]) -> list[float]:
    """Two-sided nominal level of each analysis, for an overall false-alarm rate of ``alpha``.

    Args:
        alpha: 0 < alpha < 1.
        repeats_analysed: repeats after which the data are analysed, ascending; the last is the number planned.
    """
    return list(_levels(alpha, tuple(repeats / repeats_analysed[-1] for repeats in repeats_analysed)))


@functools.lru_cache(maxsize=64)
def _levels(alpha: float, shares: tuple[float, ...]) -> tuple[float, ...]:
    levels: list[float] = []
    positions, density = np.zeros(1), np.ones(1)  # of the paths that have not crossed a bound
    before, spent = 0.0, 0.0
    for share in shares:
        spend, spent = alpha * share**_POWER_OF_TIME - spent, alpha * share**_POWER_OF_TIME
        step = math.sqrt(share - before)
        bound = _bound(positions, density, step, spend)
        levels.append(math.erfc(bound / math.sqrt(2 * share)))
        inside = np.linspace(-bound, bound, _GRID)
        weight = (inside[1] - inside[0]) * np.r_[0.5, np.ones(_GRID - 2), 0.5]
        distance = (inside[:, None] - positions[None, :]) / step
        density = weight * (np.exp(-(distance**2) / 2) @ density) / (step * math.sqrt(2 * math.pi))
        positions, before = inside, share
    return tuple(levels)


def _bound(positions: np.ndarray, density: np.ndarray, step: float, spend: float) -> float:
    """Bound that the motion crosses at its next step with probability ``spend``, by bisection."""
    from scipy.special import ndtr  # noqa: PLC0415  (scipy costs 0.2 s; --help must not pay)

    low, high = 0.0, 12.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        outside = float(density @ (ndtr((-middle - positions) / step) + ndtr((positions - middle) / step)))
        low, high = (middle, high) if outside > spend else (low, middle)
    return (low + high) / 2
