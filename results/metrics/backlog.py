"""Whether an engine keeps up with an open loop, judged by the queue that its requests show.

**Queue.** A request waits from its plan for as long as its TTFT exceeds that of an uncontended request with as many
prompt tokens to compute, which is the lower envelope of the trial's own TTFTs. Requests that arrive one after the other
wait for the same queue, so their waits are alike; where they are not, TTFTs merely vary, and there is no queue. A queue
is *seen* while at least one request waits, and at least :data:`MIN_WAITING` of those in flight: an engine without
limit, or with room, shows none, whatever the bursts of the plan. A request that was cancelled before its first token
never left the queue. If it had waited for less than the uncontended TTFT, nobody knows whether it waited, so a trial is
judged until the first such request was planned.

**Capacity.** While a queue is seen, requests leave it as fast as the engine can take them. Their rate there, µ, is the
capacity, with the relative error CV / √n of n departures (CV: coefficient of variation of the service times, E2E less
the wait), at least :data:`MIN_ERROR`. The utilisation is the plan's long-run rate over µ; the plan's own bursts do not
enter, so a backlog of a burst that the engine works off is no saturation.

**Slow decline.** An engine that batches serves more requests the more are in flight, each more slowly, and may show no
queue. So the requests in flight N(t) are also compared with those that the same arrivals would have if answer times
were exchangeable: with the fraction P(a) of all answers longer than a, the expected number is Σ P(t − planned) over the
arrivals, and its variance Σ P (1 − P). The growth that remains from the window's first tenth to its last is a sign of
a backlog.

Simulated against queues with one to 64 servers, batching servers and unlimited ones under bursts in
``benchmarks/truth/saturation.py``.
"""

import math
from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt

from bakeoff.results.columns import UNKNOWN, Ints
from bakeoff.results.records import Window
from bakeoff.results.requests import Requests
from bakeoff.results.units import NS_PER_S

MIN_WAITING = 0.05
MIN_ERROR = 0.02
_MIN_CORRELATION, _CORRELATION_Z = 0.3, 3.0
"""Waits are alike if the rank correlation of successive ones is at least this high, and so many standard errors."""
_MIN_SEEN = 0.6
"""Fraction of the window in which a queue must be seen before a trial is judged by it."""
_MIN_SEEN_LATE, _MIN_LATE_REQUESTS = 0.8, 60
"""The same for the window's second half, if at least so many requests were planned and a backlog grew."""
_MIN_SEEN_SOME = 0.2
"""The same if the requests in flight grew more than the arrivals explain: bursts that queue do so for a while."""
_Z = 2.33
"""One-sided 99 % quantile of the normal distribution."""
_MIN_GROWTH_Z = 2.2
_CERTAIN_GROWTH = 8.0
"""Unexplained growth, in units of √max(N, 20), that no engine shows while it approaches its steady state."""
_MIN_BACKLOG = 20.0
_INSTANTS = 400
_MAX_BINS, _MIN_BIN, _ENVELOPE = 8, 10, 0.05
"""The envelope is this quantile of the TTFTs in bins of prompt lengths: at most so many bins, of so many requests."""
MAX_NEEDED = 1_000_000
_Floats = npt.NDArray[np.float64]


class Pressure(StrEnum):
    """How an engine copes with a load."""

    SUSTAINED = "sustained"
    """It keeps up, as far as the trial shows."""
    UNCLEAR = "unclear"
    """A queue or a backlog is seen, and the requests are too few to tell whether it will grow without end."""
    SATURATED = "saturated"
    """It falls behind."""


class Backlog(msgspec.Struct, frozen=True):
    """The backlog of an open loop over a window.

    Attributes:
        pressure: the judgement.
        first_in_flight: mean requests in flight in the window's first tenth.
        last_in_flight: the same in its last tenth.
        seen_share: fraction of the window in which a queue is seen.
        requests: planned within the window.
        utilisation: planned rate over the rate at which requests left the queue; None if no queue was judged.
        needed_requests: how many a verdict would need at this utilisation, at least twice as many and at most
            :data:`MAX_NEEDED`; None without it.
    """

    pressure: Pressure
    first_in_flight: float = 0.0
    last_in_flight: float = 0.0
    seen_share: float = 0.0
    requests: int = 0
    utilisation: float | None = None
    needed_requests: int | None = None


class Times(msgspec.Struct, frozen=True):
    """Times of all requests, in seconds from the start of the window.

    Attributes:
        planned: by the plan.
        left: when the wait was over; infinite for a request that was cancelled while it waited.
        ended: when its answer ended.
        known_s: until when it is known which requests wait, at least half the window.
    """

    planned: _Floats
    left: _Floats
    ended: _Floats
    known_s: float

    def services(self) -> _Floats:
        """Lengths of the services of the requests that were planned while all waits are known, in seconds."""
        used = (self.planned >= 0) & (self.planned < self.known_s) & np.isfinite(self.left)
        return (self.ended - self.left)[used]


def backlog(requests: Requests, window: Window, rate_per_s: float) -> Backlog:
    """Judge a steady open loop.

    Args:
        requests: all under load.
        window: of the trial.
        rate_per_s: requests per second that the plan sends in the long run.
    """
    if len(requests) < 2 or window.length_s <= 0:
        return Backlog(Pressure.SUSTAINED)
    times = times_of(requests, window)
    instants = (np.arange(_INSTANTS) + 0.5) * times.known_s / _INSTANTS
    in_flight = between(times.planned, times.ended, instants)
    waiting = between(times.planned, times.left, instants)
    seen = is_queue_seen(waiting, in_flight)
    growth = _unexplained_growth(times, instants, in_flight)
    tenth = _INSTANTS // 10
    found = Backlog(
        Pressure.SUSTAINED,
        float(in_flight[:tenth].mean()),
        float(in_flight[-tenth:].mean()),
        float(seen.mean()),
        int(((times.planned >= 0) & (times.planned < window.length_s)).sum()),
    )
    late = seen[_INSTANTS // 2 :].mean() >= _MIN_SEEN_LATE and found.requests >= _MIN_LATE_REQUESTS and growth > 0
    some = growth > _MIN_GROWTH_Z and found.seen_share >= _MIN_SEEN_SOME
    if found.seen_share >= _MIN_SEEN or late or some:
        grew = waiting[-tenth:].mean() > waiting[:tenth].mean() and bool(seen[-_INSTANTS // 4 :].all())
        return _by_queue(found, times, seen, rate_per_s, grew=grew)
    return _by_growth(found, growth)


def _by_queue(found: Backlog, times: Times, seen: npt.NDArray[np.bool_], rate_per_s: float, *, grew: bool) -> Backlog:
    """Judge by the rate at which requests left the queue while it was seen."""
    departures = max(1, departures_while(seen, times))
    utilisation = rate_per_s * found.seen_share * times.known_s / departures
    services = times.services()
    mean = float(services.mean()) if services.size else 0.0
    spread = float(services.std()) / mean if mean > 0 else 1.0
    error = max(MIN_ERROR, spread / math.sqrt(departures))
    excess = math.log(max(utilisation, 1e-9))
    if excess > _Z * error and grew:
        pressure = Pressure.SATURATED
    elif excess < -_Z * error:
        pressure = Pressure.SUSTAINED
    else:
        pressure = Pressure.UNCLEAR
    needed = math.ceil(min(MAX_NEEDED, (_Z * max(spread, MIN_ERROR) / max(abs(excess), 1e-6)) ** 2))
    return msgspec.structs.replace(
        found, pressure=pressure, utilisation=utilisation, needed_requests=max(needed, 2 * found.requests)
    )


def is_queue_seen(waiting: npt.NDArray[np.int64], in_flight: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a queue is seen at each instant, from the requests that wait and those in flight."""
    return waiting >= np.maximum(1, MIN_WAITING * in_flight)


def departures_while(seen: npt.NDArray[np.bool_], times: Times) -> int:
    """Number of requests that left the queue while it was seen, at equally spaced instants until ``known_s``."""
    left = times.left[(times.left >= 0) & (times.left < times.known_s)]
    return int(seen[np.minimum((left / times.known_s * len(seen)).astype(int), len(seen) - 1)].sum())


def _by_growth(found: Backlog, growth: float) -> Backlog:
    """Judge by the growth of the requests in flight that the arrivals do not explain."""
    if growth <= _MIN_GROWTH_Z:
        return found
    grown = found.last_in_flight - found.first_in_flight
    certain = grown > _CERTAIN_GROWTH * math.sqrt(max(found.first_in_flight, _MIN_BACKLOG))
    return msgspec.structs.replace(found, pressure=Pressure.SATURATED if certain else Pressure.UNCLEAR)


def _unexplained_growth(times: Times, instants: _Floats, in_flight: npt.NDArray[np.int64]) -> float:
    """Growth of N(t) from the first tenth to the last beyond the expected one, in standard deviations."""
    lengths = np.sort(times.ended - times.planned)
    planned = np.sort(times.planned)

    def excess(chosen: npt.NDArray[np.int64]) -> tuple[float, float]:
        expected, variance = 0.0, 0.0
        for number in chosen:
            ages = instants[number] - planned[: np.searchsorted(planned, instants[number], "right")]
            longer = 1 - np.searchsorted(lengths, ages, "right") / len(lengths)
            expected += float(longer.sum()) / len(chosen)
            variance += float((longer * (1 - longer)).sum()) / len(chosen)
        return float(in_flight[chosen].mean()) - expected, variance

    tenth, step = len(instants) // 10, 4
    before, variance_before = excess(np.arange(0, tenth, step))
    after, variance_after = excess(np.arange(len(instants) - tenth, len(instants), step))
    variance = max(variance_before + variance_after, float(in_flight.mean()), 4.0)
    return (after - before) / math.sqrt(variance)


def between(starts: _Floats, ends: _Floats, instants: _Floats) -> npt.NDArray[np.int64]:
    """Number of intervals that hold each instant."""
    began = np.searchsorted(np.sort(starts), instants, "right")
    return began - np.searchsorted(np.sort(ends), instants, "right")


def times_of(requests: Requests, window: Window) -> Times:
    """Times of requests; a wait is over at once unless successive waits are alike."""

    def seconds(times_ns: Ints) -> _Floats:
        return (times_ns - window.start_ns) / NS_PER_S

    has_chunks, ended_ns = requests.chunks.counts > 0, requests.ints("ended_ns")
    planned, ended = seconds(requests.ints("planned_ns")), seconds(ended_ns)
    first = seconds(np.where(has_chunks, requests.chunks.first_ns, ended_ns))
    computed = _computed_tokens(requests)
    waits = first - planned - _uncontended_s(computed, first - planned)
    if not _are_alike(waits[np.argsort(planned, kind="stable")]):
        return Times(planned, planned, ended, window.length_s)
    cut = requests.is_cancelled & ~has_chunks
    unknown = planned[cut & (waits <= 0) & (planned >= window.length_s / 2)]
    known_s = min(window.length_s, float(unknown.min(initial=window.length_s)))
    return Times(planned, np.where(cut & (waits > 0), np.inf, planned + waits), ended, known_s)


def _are_alike(waits: _Floats) -> bool:
    """Whether successive waits correlate, by Spearman's coefficient at lag 1."""
    if len(waits) < 3 or waits.max() <= waits.min():
        return False
    ranks = np.argsort(np.argsort(waits, kind="stable")).astype(np.float64)
    correlation = float(np.corrcoef(ranks[:-1], ranks[1:])[0, 1])
    return correlation >= max(_MIN_CORRELATION, _CORRELATION_Z / math.sqrt(len(waits)))


def _computed_tokens(requests: Requests) -> _Floats:
    """Prompt tokens that the engine had to compute, as far as is known."""
    counted, cached = requests.ints("prompt_tokens"), np.maximum(requests.ints("cached_tokens"), 0)
    planned = np.maximum(requests.ints("requested_input_tokens"), 0)
    return np.where(counted == UNKNOWN, planned, counted - cached).astype(np.float64)


def _uncontended_s(tokens: _Floats, ttfts_s: _Floats) -> _Floats:
    """TTFT that each request would have alone: the lower envelope, which does not fall with the prompt's length."""
    bins = max(1, min(_MAX_BINS, len(tokens) // _MIN_BIN))
    edges = np.unique(np.quantile(tokens, np.linspace(0, 1, bins + 1)))
    chosen = np.searchsorted(edges, tokens, "right") - 1  # the greatest length has a bin of its own, if it is frequent
    numbers, counts = np.unique(chosen, return_counts=True)
    used = numbers[counts >= min(_MIN_BIN // 2, counts.max())]
    centres = np.array([tokens[chosen == number].mean() for number in used])
    lowest = np.array([np.quantile(ttfts_s[chosen == number], _ENVELOPE) for number in used])
    envelope = np.minimum.accumulate(lowest[::-1])[::-1]  # a shorter prompt is at least as fast
    return np.minimum(ttfts_s, np.interp(tokens, centres, envelope))
