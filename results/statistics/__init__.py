"""Statistics over runs: the unit of evidence is a trial, never a request."""

from results.statistics.compare import ALPHA, BAND, Comparison, Evidence, Judgement, compare_runs, guardrails
from results.statistics.interval import Interval, log_t_interval

__all__ = [
    "ALPHA",
    "BAND",
    "Comparison",
    "Evidence",
    "Interval",
    "Judgement",
    "compare_runs",
    "guardrails",
    "log_t_interval",
]
