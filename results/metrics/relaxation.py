"""How long the requests in flight of an open loop remember: what decides how precise latencies of its window are.

A queue that is long now is long for a while, so a window holds few independent states of it, however many requests it
has. The *memory* is the integrated autocorrelation time of the requests in flight, both sides: a window of length T has
about T / memory independent states. It cannot be seen in a window that is not much longer, for such a window shows a
part of one excursion. It is therefore computed from what a window does show, the load and how the engine responds:

- **Queue.** Near its capacity a queue moves like a random walk with a drift, reflected at 0, whose memory is
  (c_a² + c_s²) / (µ (1 − u)²): µ is the rate at which requests leave the queue while it is seen, u the planned rate
  over µ, and c_a and c_s are the coefficients of variation of gaps between arrivals and of service times (Whitt,
  Planning queueing simulations, Management Science 35 (1989), 1341–1366).
- **Batching.** Each token takes a + b N where N requests are served together, so by Little's law N relaxes with the
  time S / (1 − λ n b): S is the mean service time, λ the rate, n the mean number of tokens. Twice that is the memory.

Below :data:`MIN_LOAD`, in u or λ n b, an engine is lightly loaded and latencies do not depend on how its requests pile
up. ``benchmarks/statistics/precision.py`` measures both rules.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from bakeoff.results.metrics.backlog import Times, between, departures_while, is_queue_seen, times_of
from bakeoff.results.records import TrialRecord, Window, WindowKind
from bakeoff.results.requests import Requests

MIN_LOAD = 0.5
MIN_STATES = 2.0
"""A window with fewer independent states has no interval of a latency. Four servers of 1 s have 5 to 12 of them in 30 s
at 70 % of their capacity, and about one at 90 %."""
_WANTED_STATES = 5.0
_MAX_LOAD = 0.98
"""At its capacity a queue never relaxes; the memory is that at this load."""
_MAX_GAP_VARIATION = 4.0
"""Largest c_a²: that of bursts which the engine works off between them is far larger, and no random walk."""
_GAP_ERRORS = 6.0
"""Three standard errors of c_a² of a Poisson process, times the square root of the number of gaps."""
_CAUTION = 1.5
"""The load on a queue is taken as smaller by so many standard errors."""
_MIN_DEPARTURES, _MIN_SERVED = 3, 20
_MIN_CORRELATION = 0.5
"""An engine is taken to batch if the time per token correlates with the requests in service by this much."""
_INSTANTS = 400
_Floats = npt.NDArray[np.float64]


class Relaxation(msgspec.Struct, frozen=True):
    """The memory of the requests in flight.

    Attributes:
        memory_s: integrated autocorrelation time, both sides.
        window_s: length of the window.
    """

    memory_s: float
    window_s: float

    @property
    def states(self) -> float:
        """Number of independent states that the window holds."""
        return self.window_s / self.memory_s

    @property
    def is_window_short(self) -> bool:
        """Whether the window is too short for the precision of a latency to be known."""
        return self.states < MIN_STATES


def needed_window_s(relaxation: Relaxation) -> float:
    """Length of a window whose latencies have an interval, in seconds."""
    return _WANTED_STATES * relaxation.memory_s


def relaxation(requests: Requests, window: Window, rate_per_s: float) -> Relaxation | None:
    """The relaxation of a steady open loop.

    Args:
        requests: all under load.
        window: of the trial.
        rate_per_s: requests per second that the plan sends in the long run.

    Returns:
        None if the engine is lightly loaded, or too little is known.
    """
    if len(requests) < _MIN_SERVED or window.length_s <= 0:
        return None
    times = times_of(requests, window)
    memories_s = (
        _queue_memory_s(times, rate_per_s),
        _batch_memory_s(times, requests, window.length_s, rate_per_s),
    )
    memory_s = max(memories_s)
    return Relaxation(memory_s, window.length_s) if memory_s > 0 else None


def relaxation_of(trial: TrialRecord, requests: Requests) -> Relaxation | None:
    """The relaxation of a trial; None also if its load is no steady open loop.

    Args:
        trial: record of the trial.
        requests: all under load.
    """
    rate_per_s = trial.load.rate_per_s
    if trial.load.concurrency is not None or rate_per_s is None or trial.window.kind is not WindowKind.STEADY:
        return None
    return relaxation(requests, trial.window, rate_per_s * (trial.traffic.turns if trial.traffic else 1.0))


def _queue_memory_s(times: Times, rate_per_s: float) -> float:
    instants = (np.arange(_INSTANTS) + 0.5) * times.known_s / _INSTANTS
    seen = is_queue_seen(
        between(times.planned, times.left, instants), between(times.planned, times.ended, instants)
    )  # fmt: skip
    departures = departures_while(seen, times)
    gaps = np.diff(np.sort(times.planned[(times.planned >= 0) & (times.planned < times.known_s)]))
    services = times.services()
    if departures < _MIN_DEPARTURES or len(gaps) < 2 or not services.any():
        return 0.0
    capacity = departures / (float(seen.mean()) * times.known_s)
    variation = float(services.std() / services.mean())
    # lower by its error, of random services and of counts, so that few departures do not alarm
    load = rate_per_s / capacity * math.exp(-_CAUTION * variation / math.sqrt(departures) - 1 / departures)
    if load < MIN_LOAD:
        return 0.0
    return (_gap_variation(gaps) + variation**2) / (capacity * (1 - min(load, _MAX_LOAD)) ** 2)


def _gap_variation(gaps: _Floats) -> float:
    """c_a²: 1, that of a Poisson process, unless the gaps clearly have another."""
    found = float(gaps.var() / gaps.mean() ** 2) if gaps.mean() > 0 else 1.0
    return 1.0 if abs(found - 1) < _GAP_ERRORS / math.sqrt(len(gaps)) else min(_MAX_GAP_VARIATION, found)


def _batch_memory_s(
    times: Times, requests: Requests, length_s: float, rate_per_s: float
) -> float:  # fmt: skip
    services = times.ended - times.left
    tokens = requests.chunks.total_tokens.astype(np.float64)
    used = requests.is_ok & (tokens > 0) & (services > 0) & (times.planned >= 0) & (times.planned < length_s)
    if used.sum() < _MIN_SERVED:
        return 0.0
    together = _mean_in_service(times)[used]
    paces = services[used] / tokens[used]
    if together.std() <= 0 or paces.std() <= 0:
        return 0.0
    correlation = float(np.corrcoef(together, paces)[0, 1])
    if correlation < _MIN_CORRELATION:
        return 0.0
    slope = float(paces.std() / together.std())
    error = slope * math.sqrt((1 - min(1.0, correlation**2)) / len(paces))
    load = rate_per_s * float(tokens[used].mean()) * (correlation * slope - error)
    return 2 * float(services[used].mean()) / (1 - min(load, _MAX_LOAD)) if load >= MIN_LOAD else 0.0


def _mean_in_service(times: Times) -> _Floats:
    """Mean number of requests in service while each request is."""
    served = np.isfinite(times.left)
    instants = np.concatenate([times.left[served], times.ended[served]])
    order = np.argsort(instants, kind="stable")
    changes = np.concatenate([np.ones(served.sum()), -np.ones(served.sum())])[order]
    instants = instants[order]
    work = np.concatenate([[0.0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(instants))])
    lengths = np.maximum(times.ended - times.left, 1e-12)
    return (np.interp(times.ended, instants, work) - np.interp(times.left, instants, work)) / lengths
