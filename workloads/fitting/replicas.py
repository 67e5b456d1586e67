"""What an arrival process does on average in as many arrivals as a trace has.

One draw says little: an hour's index of dispersion over a minute differs by half from seed to seed where the rate
drifts. So each process is drawn again and again, and its figures are means over the draws.
"""

from itertools import islice

import msgspec
import numpy as np

from workloads.arrivals import Arrival
from workloads.dispersion import ArrivalStatistics
from workloads.fitting.samples import Floats
from workloads.fitting.starts import Arrivals

WINDOWS_S = (1, 10, 60)
"""Windows over which dispersion is compared, in seconds."""
_FEWEST_DRAWS, _MOST_DRAWS = 8, 400
_MOST_SECONDS = 2e7
"""Of all draws together, as every second is counted; where arrivals are rare there are fewer draws."""
_LONGEST_SPAN_S = 1e8
"""What statistics of arrivals can hold; a draw of very bursty gaps may go on for longer."""


class Replicas(msgspec.Struct, frozen=True):
    """Draws of one process.

    Attributes:
        gaps_s: of all of them.
        figures: means over the draws, by the names of :func:`arrival_figures`; what hardly any has is left out.
        spread: standard deviations over the draws, by the same names; 0 where there is one.
    """

    gaps_s: Floats
    figures: dict[str, float]
    spread: dict[str, float]


def arrival_figures(arrivals: Arrivals) -> dict[str, float]:
    """Rate, gap CV and dispersion of a trace, named as in a workload profile."""
    found = {f"dispersion_{window_s}s": arrivals.dispersions.get(window_s) for window_s in WINDOWS_S}
    found = {"rate_per_s": arrivals.rate_per_s, "gap_cv": arrivals.gap_cv, **found}
    return {name: value for name, value in found.items() if value is not None}


def replicas(process: Arrival, seed: str, arrivals: int, budget: int) -> Replicas:
    """Draw a process again and again.

    Args:
        process: what to draw.
        seed: of all draws.
        arrivals: of each draw, unless the budget is less.
        budget: arrivals of all draws together.
    """
    each = min(max(arrivals, 2), budget)
    gaps: list[Floats] = []
    seen: list[dict[str, float]] = []
    spent, spent_s = 0, 0.0
    while spent < budget and len(seen) < _MOST_DRAWS and (len(seen) < _FEWEST_DRAWS or spent_s < _MOST_SECONDS):
        offsets = np.fromiter(islice(process.offsets_s(f"{seed}/{len(seen)}"), each), np.float64)
        statistics = ArrivalStatistics()
        statistics.add_all(offsets[offsets <= _LONGEST_SPAN_S].tolist())
        gaps.append(np.diff(offsets))
        seen.append(_figures(statistics))
        spent, spent_s = spent + each, spent_s + float(offsets[-1])
    having = {name: [found[name] for found in seen if name in found] for name in seen[0]}
    having = {name: values for name, values in having.items() if 2 * len(values) > len(seen)}
    return Replicas(
        np.concatenate(gaps),
        {name: float(np.mean(values)) for name, values in having.items()},
        {name: float(np.std(values)) for name, values in having.items()},
    )


def _figures(statistics: ArrivalStatistics) -> dict[str, float]:
    found = {f"dispersion_{window_s}s": statistics.dispersion(window_s) for window_s in WINDOWS_S}
    found = {"rate_per_s": statistics.rate_per_s, "gap_cv": statistics.gap_cv, **found}
    return {name: value for name, value in found.items() if value is not None}
