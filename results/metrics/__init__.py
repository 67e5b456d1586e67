"""Metrics: pure functions from a trial's log to numbers with units.

>>> from results.metrics import trial_metrics, CATALOGUE
"""

from results.metrics.catalogue import CATALOGUE, HEADLINE, Better, Metric, Unit
from results.metrics.trial import measured_only, trial_metrics, trial_window
from results.metrics.values import Value, absent

__all__ = [
    "CATALOGUE",
    "HEADLINE",
    "Better",
    "Metric",
    "Unit",
    "Value",
    "absent",
    "measured_only",
    "trial_metrics",
    "trial_window",
]
