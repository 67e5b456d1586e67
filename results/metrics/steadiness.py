"""Whether an engine was in one state through a window: a step in its pace, wherever it lies.

A server that throttles, fills its cache, shares its machine with a second job or still warms up has two speeds, and the
window's figures are those of neither. The times of the requests planned in the window are tested in their order
(:mod:`bakeoff.results.statistics.steps`): TPOT, and TTFT unless requests queue, whose waits wander by themselves; of
answers without tokens that have times, the time of a whole answer for each of its tokens. A drift shows as a step, too.
"""

from typing import NamedTuple

import numpy as np

from bakeoff.results.metrics import latency
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.statistics.steps import MOST_DEVIATIONS, largest_step

_LEAST_CHANGE, _LEAST_BEYOND_WANDERING = 1.25, 1.5
"""Ratio of the medians on both sides, in either direction; and where a batch grows and shrinks slowly by itself."""
_MIN_SESSIONS = 30
"""Sessions in the window from which on their prompts, which grow from turn to turn, are a mix of the long run."""


class Change(NamedTuple):
    """A step in a latency.

    Attributes:
        latency: ``ttft``, ``tpot`` or ``normalized_latency``.
        at_ns: planned time of the first request behind it.
        before_s: median before it.
        after_s: median behind it.
    """

    latency: str
    at_ns: int
    before_s: float
    after_s: float

    @property
    def is_slower(self) -> bool:
        """Whether the engine became slower."""
        return self.after_s > self.before_s


def change_of_state(
    planned: Requests, *, are_queued: bool = False, may_wander: bool = False, are_sessions: bool = False
) -> Change | None:
    """The clearest step in a window; None if noise explains it, or it is small.

    Args:
        planned: requests planned in the window.
        are_queued: whether requests wait for others.
        may_wander: whether the time per token follows the requests in flight, which change slowly.
        are_sessions: whether sessions have several requests.
    """
    ok = planned.ok
    if are_sessions and len(set(ok.values("session"))) < _MIN_SESSIONS:
        return None
    ok = ok.take(np.argsort(ok.ints("planned_ns"), kind="stable"))
    series = {"tpot": latency.tpot_s(ok)}
    if not are_queued:
        series["ttft"] = latency.ttft_s(ok)
    if not any(np.isfinite(values).any() for values in series.values()):
        series["normalized_latency"] = latency.normalized_latency_s(ok)
    least = _LEAST_BEYOND_WANDERING if may_wander else _LEAST_CHANGE
    found = [change for name, values in series.items() if (change := _change(name, ok, values, least)) is not None]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _change(name: str, requests: Requests, values_s: Floats, least: float) -> tuple[float, Change] | None:
    known = np.flatnonzero(np.isfinite(values_s))
    step = largest_step(values_s[known])
    if step is None or step.deviations <= MOST_DEVIATIONS or min(step.before, step.after) <= 0:
        return None
    if max(step.before, step.after) < least * min(step.before, step.after):
        return None
    at_ns = int(requests.ints("planned_ns")[known[step.place]])
    return step.deviations, Change(name, at_ns, step.before, step.after)
