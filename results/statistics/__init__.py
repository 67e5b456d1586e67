"""Statistics over runs: the unit of evidence is a trial, never a request."""

from bakeoff.results.statistics.compare import compare_runs, compare_sessions, guardrails
from bakeoff.results.statistics.comparison import ALPHA, BAND, COMPARE_ALPHA, DETECT, Comparison, Evidence, Judgement
from bakeoff.results.statistics.interval import Interval, interval_of, log_t_interval

__all__ = [
    "ALPHA",
    "BAND",
    "COMPARE_ALPHA",
    "DETECT",
    "Comparison",
    "Evidence",
    "Interval",
    "Judgement",
    "compare_runs",
    "compare_sessions",
    "guardrails",
    "interval_of",
    "log_t_interval",
]
