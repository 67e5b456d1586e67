"""Statistics over runs: the unit of evidence is a trial, never a request."""

from results.statistics.compare import Comparison, Judgement, compare_paired
from results.statistics.interval import Interval, log_t_interval

__all__ = ["Comparison", "Interval", "Judgement", "compare_paired", "log_t_interval"]
