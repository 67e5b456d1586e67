"""The length that the window of a steady load needs."""

import math

from bakeoff.harness.experiment.config import TrialConfig
from bakeoff.results.records import Load

TURNOVERS = 3
"""Minimum length of a closed loop's window, in turnovers: mean times from one request of a slot to its next."""
_FEW = 30
"""Below so many wanted requests no percentile is at stake, and a window is not made longer for it."""


def window_s(load: Load, limits: TrialConfig, turnover_s: float, length_s: float | None = None) -> float:
    """Seconds that a window needs: the longest of ``duration_s``, ``min_requests`` and three turnovers.

    Args:
        load: the trial's level.
        limits: of the trial.
        turnover_s: of a slot; 0 in an open loop.
        length_s: seconds of the plan, if it is fixed; else ``min_requests`` needs as many turnovers as it takes.
    """
    wanted = float(limits.min_requests)
    if wanted >= _FEW:  # two standard deviations of a count more, or half of the windows have too few
        wanted += 2 * math.sqrt(wanted)
    for_requests_s = length_s or wanted * turnover_s / (load.concurrency or 1)
    return max(limits.duration_s, for_requests_s, TURNOVERS * turnover_s)
