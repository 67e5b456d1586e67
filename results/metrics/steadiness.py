"""Steadiness of a load over its window: backlog of an open loop, throughput trend of a closed loop.

**Saturated.** At a rate the engine can sustain, the requests in flight N(t) are stationary: the difference of two
distant samples has a standard deviation of about √(2 N̄) for many servers, and about 6 for one server at a utilisation
of 0.8, whose N is geometric with mean 4. A backlog that grew by more than :data:`GROWTH` √max(N̄, 20) from the window's
first tenth to its last is beyond both (simulated in ``benchmarks/truth/known_answers.py``). Half of
that growth is suspect already: an overload of 20 % adds only 9 requests to a window of 45. Up to twice that growth, a
batching engine may still be approaching its steady state: its step time rises with N, so the variance of N is about
N̄ / (1 − utilisation), and N relaxes more slowly by the same factor.

**Trend.** Student's t of the slope of the tokens that arrived in six to ten batches of the window (batch means: Law and
Kelton, Simulation Modeling and Analysis, ch. 9). A batch lasts a turnover of a slot where the window is long enough, so
that batches share no requests; a slope counts if it is both significant and large.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np

from results.records import RequestRecord, Window
from results.statistics.distributions import t_tails

GROWTH = 4.0
MIN_BACKLOG = 20.0
_SUSPECT, _SLOW_START = 0.5, 2.0
SAMPLES = 21
"""Samples of the requests in flight, equally spaced over the window including its ends."""
_END_SAMPLES = 3
_MIN_BATCHES, _MAX_BATCHES = 6, 10
_MAX_P = 1e-3
_MIN_CHANGE = 0.2


class Growth(msgspec.Struct, frozen=True):
    """Requests in flight in the first and last tenth of a window."""

    first: float
    last: float

    @property
    def is_suspect(self) -> bool:
        """Whether the engine may be falling behind."""
        return self._excess > _SUSPECT

    @property
    def is_saturation(self) -> bool:
        """Whether the growth exceeds that of a queue that sustains the load."""
        return self._excess > 1

    @property
    def exceeds_slow_start(self) -> bool:
        """Whether the growth exceeds that of a batching engine that approaches its steady state."""
        return self._excess > _SLOW_START

    @property
    def _excess(self) -> float:
        return (self.last - self.first) / (GROWTH * math.sqrt(max(self.first, MIN_BACKLOG)))


def growth(in_flight: Sequence[float]) -> Growth:
    """Compute the growth from samples of the requests in flight; 0 for fewer than two."""
    if len(in_flight) < 2:
        return Growth(0.0, 0.0)
    return Growth(statistics.fmean(in_flight[:_END_SAMPLES]), statistics.fmean(in_flight[-_END_SAMPLES:]))


def in_flight(requests: Sequence[RequestRecord], window: Window) -> list[int]:
    """Requests in flight (planned and not ended) at :data:`SAMPLES` instants of the window."""
    planned, ended = sorted(r.planned_ns for r in requests), sorted(r.ended_ns for r in requests)
    length_ns = window.end_ns - window.start_ns
    instants = [window.start_ns + length_ns * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [bisect_left(planned, t_ns) - bisect_left(ended, t_ns) for t_ns in instants]


def throughput_change(requests: Sequence[RequestRecord], window: Window, turnover_s: float) -> float | None:
    """Change of the token rate over the window relative to its mean; None without a significant trend.

    Args:
        requests: all under load.
        window: of the trial.
        turnover_s: mean time from one request of a slot to its next.
    """
    if window.length_s <= 0:
        return None
    turnovers = int(window.length_s / turnover_s) if turnover_s > 0 else _MAX_BATCHES
    batches = min(_MAX_BATCHES, max(_MIN_BATCHES, turnovers))
    edges = np.linspace(window.start_ns, window.end_ns, batches + 1)
    times = np.array([t for r in requests for t in r.chunk_ns], dtype=np.float64)
    weights = np.array([n for r in requests for n in r.chunk_tokens], dtype=np.float64)
    tokens, _ = np.histogram(times, edges, weights=weights)
    mean = float(tokens.mean())
    if not mean:
        return None
    x = np.arange(batches) - (batches - 1) / 2
    slope = float((x * tokens).sum() / (x * x).sum())
    change = slope * (batches - 1) / mean
    residual = tokens - mean - slope * x
    error = math.sqrt(float((residual * residual).sum()) / (batches - 2) / float((x * x).sum()))
    p_value = t_tails(slope / error, batches - 2) if error else 0.0
    return change if abs(change) >= _MIN_CHANGE and p_value <= _MAX_P else None
