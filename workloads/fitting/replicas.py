"""Average figures of an arrival process over draws as long as a trace.

A single draw is noisy: with a drifting rate, an hour's index of dispersion over a minute varies by half from seed to
seed. So each process is drawn many times, and its figures are means over the draws.
"""

from itertools import islice

import msgspec
import numpy as np

from bakeoff.workloads.arrivals import Arrival
from bakeoff.workloads.dispersion import ArrivalStatistics
from bakeoff.workloads.fitting.samples import Floats
from bakeoff.workloads.fitting.starts import Arrivals

WINDOWS_S = (1, 10, 60)
"""Windows over which dispersion is compared, in seconds."""
_FEWEST_DRAWS, _MOST_DRAWS = 8, 400
_MOST_SECONDS = 2e7
"""Total seconds of all draws, because statistics hold every second; rare arrivals get fewer draws."""
_LONGEST_SPAN_S = 1e8
"""Limit of :class:`ArrivalStatistics`; a draw of very bursty gaps can exceed it."""


class Replicas(msgspec.Struct, frozen=True):
    """Draws of one process.

    Attributes:
        gaps_s: gaps of all draws, in seconds.
        figures: means over the draws, named as in :func:`arrival_figures`; figures that most draws lack are left out.
        spread: standard deviations over the draws, by the same names; 0 for a single draw.
    """

    gaps_s: Floats
    figures: dict[str, float]
    spread: dict[str, float]


def arrival_figures(arrivals: Arrivals) -> dict[str, float]:
    """Rate, gap CV and dispersion of a trace, named as in a workload profile."""
    figures = {f"dispersion_{window_s}s": arrivals.dispersions.get(window_s) for window_s in WINDOWS_S}
    figures = {"rate_per_s": arrivals.rate_per_s, "gap_cv": arrivals.gap_cv, **figures}
    return {name: value for name, value in figures.items() if value is not None}


def replicas(process: Arrival, seed: str, arrivals: int, budget: int) -> Replicas:
    """Draw a process repeatedly.

    Args:
        process: the process.
        seed: of all draws.
        arrivals: per draw, at most ``budget``.
        budget: total arrivals of all draws.
    """
    per_draw = min(max(arrivals, 2), budget)
    gaps: list[Floats] = []
    draws: list[dict[str, float]] = []
    spent, spent_s = 0, 0.0
    while spent < budget and len(draws) < _MOST_DRAWS and (len(draws) < _FEWEST_DRAWS or spent_s < _MOST_SECONDS):
        offsets = np.fromiter(islice(process.offsets_s(f"{seed}/{len(draws)}"), per_draw), np.float64)
        statistics = ArrivalStatistics()
        statistics.add_all(offsets[offsets <= _LONGEST_SPAN_S].tolist())
        gaps.append(np.diff(offsets))
        draws.append(_figures(statistics))
        spent, spent_s = spent + per_draw, spent_s + float(offsets[-1])
    values_of = {name: [figures[name] for figures in draws if name in figures] for name in draws[0]}
    values_of = {name: values for name, values in values_of.items() if 2 * len(values) > len(draws)}
    return Replicas(
        np.concatenate(gaps),
        {name: float(np.mean(values)) for name, values in values_of.items()},
        {name: float(np.std(values)) for name, values in values_of.items()},
    )


def _figures(statistics: ArrivalStatistics) -> dict[str, float]:
    figures = {f"dispersion_{window_s}s": statistics.dispersion(window_s) for window_s in WINDOWS_S}
    figures = {"rate_per_s": statistics.rate_per_s, "gap_cv": statistics.gap_cv, **figures}
    return {name: value for name, value in figures.items() if value is not None}
