"""The length that the window of a steady load needs."""

from bakeoff.harness.experiment.config import TrialConfig
from bakeoff.results.records import Load

TURNOVERS = 3
"""Minimum length of a closed loop's window, in turnovers: mean times from one request of a slot to its next."""


def window_s(load: Load, limits: TrialConfig, turnover_s: float, length_s: float | None = None) -> float:
    """Seconds that a window needs: the longest of ``duration_s``, ``min_requests`` and three turnovers.

    Args:
        load: the trial's level.
        limits: of the trial.
        turnover_s: of a slot; 0 in an open loop.
        length_s: seconds of the plan, if it is fixed; else ``min_requests`` needs as many turnovers as it takes.
    """
    for_requests_s = length_s or limits.min_requests * turnover_s / (load.concurrency or 1)
    return max(limits.duration_s, for_requests_s, TURNOVERS * turnover_s)
