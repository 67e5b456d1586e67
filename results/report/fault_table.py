"""Texts of faults and recoveries, for the page and the terminal."""

from bakeoff.results.metric import Unit
from bakeoff.results.metrics.recovery import SPAN
from bakeoff.results.run.faults import FaultSummary
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, bounds_text, scale_for, short_text

TITLES = ("fault", "down", "start", "SLO held again", "requests", "failed", "late", "lost")
CAPTION = (
    f"SLO held again: time from the fault until no {SPAN} requests in a row had clearly more bad ones among them than "
    "before; requests: those in progress at the fault, and those planned until then; lost: how many more of them would "
    "have met the SLO in peace"
)


def name_of(summary: FaultSummary) -> str:
    """``restart of 127.0.0.1:8001``."""
    return f"{summary.action.value} of {summary.replica}" if summary.replica else summary.action.value


def figures_of(summary: FaultSummary) -> list[str]:
    """The figures under :data:`TITLES` but the first; a centre, and on a second line its bounds."""
    means = (summary.requests, summary.failed, summary.late, summary.lost)
    return [_text(summary.down_s), _text(summary.start_s), _recovered(summary), *map(_count, means)]


def _recovered(summary: FaultSummary) -> str:
    if not summary.decidable:
        return "too few requests"
    if not summary.recovered:
        return f"not within {scale_for(Unit.SECONDS, summary.watched_s).text(summary.watched_s)}"
    text = _text(summary.recovered_s)
    return text if summary.recovered == summary.trials else f"{text}\n{summary.recovered} of {summary.trials} trials"


def _text(interval: Interval | None) -> str:
    if interval is None:
        return ABSENT
    scale = scale_for(Unit.SECONDS, interval.centre)
    return f"{scale.text(interval.centre)}\n{bounds_text(interval, scale)}".rstrip()


def _count(mean: float) -> str:
    return short_text(round(mean, 1))
