"""Whether an engine was in one state through a window: a step in its pace, wherever it lies.

A server that throttles, fills its cache, shares its machine with a second job or still warms up has two speeds, and the
window's figures are those of neither. The times of the requests planned in the window are tested in their order
(:mod:`bakeoff.results.statistics.steps`): TPOT and TTFT; of answers without tokens that have times, the time of a
whole answer for each of its tokens. A drift shows as a step, too. Where requests queue, their waits wander by
themselves; a step of TTFT counts there only if these do not explain it.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bakeoff.results.metrics import latency
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.statistics.steps import MOST_DEVIATIONS, Step, largest_step, ranks

_LEAST_CHANGE, _LEAST_BEYOND_WANDERING = 1.25, 1.5
"""Ratio of the medians on both sides, in either direction; and where a batch grows and shrinks slowly by itself."""
_TAIL, _MOST_SPREAD = 0.1, 1.5
"""Behind a step, TTFT from this quantile to its counterpart spreads, relative to its median, at most so many times as
widely as before; waits of a queue spread wider."""
_MANY = 40
"""With fewer requests on the slow side, the outer quantiles of both sides must not overlap, else the quartiles."""
_OF_ARRIVALS, _OF_NEIGHBOURS = -0.25, 0.5
"""Correlations of TTFT from which on it is a wait: of its changes with the arrivals (-0.4 to -0.9 in queues of few
slots and in batches, at 75 to 95 % of the capacity), and of neighbours (in queues of many slots, beside noise)."""
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
    series = {"tpot": latency.tpot_s(ok), "ttft": latency.ttft_s(ok)}
    if not any(np.isfinite(values).any() for values in series.values()):
        series["normalized_latency"] = latency.normalized_latency_s(ok)
    least = _LEAST_BEYOND_WANDERING if may_wander else _LEAST_CHANGE
    found = [
        change
        for name, values in series.items()
        if (change := _change(name, ok, values, least, may_wait=are_queued and name == "ttft")) is not None
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _change(
    name: str, requests: Requests, values_s: Floats, least: float, *, may_wait: bool
) -> tuple[float, Change] | None:
    known = np.flatnonzero(np.isfinite(values_s))
    step = largest_step(values_s[known])
    if step is None or step.deviations <= MOST_DEVIATIONS or min(step.before, step.after) <= 0:
        return None
    if max(step.before, step.after) < least * min(step.before, step.after):
        return None
    planned_ns = requests.ints("planned_ns")[known]
    if may_wait and _is_queue(step, planned_ns, values_s[known]):
        return None
    at_ns = int(planned_ns[step.place])
    return step.deviations, Change(name, at_ns, step.before, step.after)


def _is_queue(step: Step, planned_ns: npt.NDArray[np.int64], values_s: Floats) -> bool:
    """Whether waits may explain a step of TTFT.

    Waits of a queue overlap with TTFTs without a wait, and spread wider than these. They follow the arrivals, since a
    request that comes long after the previous one waits for less of its work (Lindley, Proceedings of the Cambridge
    Philosophical Society 48 (1952), 277-289), and each other. A step of the engine has none of this.
    """
    fast, slow = sorted((slice(None, step.place), slice(step.place, None)), key=lambda side: np.median(values_s[side]))
    slow_s, fast_s = (np.quantile(values_s[side], [_TAIL, 0.25, 0.5, 0.75, 1 - _TAIL]) for side in (slow, fast))
    spread, fast_spread = ((each[-1] - each[0]) / each[2] for each in (slow_s, fast_s))
    is_apart = slow_s[1] > fast_s[3] if len(values_s[slow]) >= _MANY else slow_s[0] > fast_s[-1]
    if not is_apart or spread > _MOST_SPREAD * fast_spread:
        return True
    of_arrivals = _correlation(np.diff(planned_ns[slow]), np.diff(values_s[slow]))
    of_neighbours = _correlation(values_s[slow][:-1], values_s[slow][1:])
    return of_arrivals < _OF_ARRIVALS or of_neighbours > _OF_NEIGHBOURS


def _correlation(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Of the ranks; 0 if one of them is constant."""
    a, b = ranks(a), ranks(b)
    return float(a @ b) / (math.sqrt(float((a @ a) * (b @ b))) or 1.0)
