"""Metrics: pure functions from a trial's log to numbers with units.

>>> from bakeoff.results.metrics import trial_metrics, CATALOGUE
"""

from bakeoff.results.metric import Better, Metric, Unit
from bakeoff.results.metrics.catalogue import CATALOGUE, COMPARED, HEADLINE, headline, summarised
from bakeoff.results.metrics.requests import has_failed
from bakeoff.results.metrics.trial import trial_metrics, whole_load_metrics
from bakeoff.results.metrics.values import Absence, Value, absent

__all__ = [
    "CATALOGUE",
    "COMPARED",
    "HEADLINE",
    "Absence",
    "Better",
    "Metric",
    "Unit",
    "Value",
    "absent",
    "has_failed",
    "headline",
    "summarised",
    "trial_metrics",
    "whole_load_metrics",
]
