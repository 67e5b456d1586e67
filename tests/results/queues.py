"""Records of simulated queues: first come, first served."""

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence

from bakeoff.results.records import Outcome, RequestRecord, Window
from tests.results.handmade import request

WARM_S, LENGTH_S = 12.0, 30.0
Arrivals = Callable[[random.Random], Iterator[float]]


def poisson(rate: float, length_s: float = LENGTH_S) -> Arrivals:
    """Exponential gaps."""

    def arrivals(rng: random.Random) -> Iterator[float]:
        t_s = 0.0
        while (t_s := t_s + rng.expovariate(rate)) < WARM_S + length_s:
            yield t_s

    return arrivals


def served(arrivals_s: Sequence[float], services_s: Sequence[float], servers: float) -> list[RequestRecord]:
    """First come, first served; the first token comes after a fifth of the service."""
    free_s = [-math.inf] * (len(arrivals_s) if servers == math.inf else int(servers))
    records = []
    for number, (t_s, service_s) in enumerate(zip(arrivals_s, services_s, strict=True)):
        start_s = max(t_s, heapq.heappop(free_s))
        heapq.heappush(free_s, start_s + service_s)
        chunks = (start_s + 0.2 * service_s, start_s + service_s)
        records.append(request(1000 * t_s, [1000 * chunk for chunk in chunks], index=number))
    return records


def cancelled_at(end_s: float, records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The same records of a client that cancels what is in flight at the end."""
    kept = []
    for full in records:
        chunks_ms = [chunk_ns / 1e6 for chunk_ns in full.chunk_ns if chunk_ns < end_s * 1e9]
        is_cut = len(chunks_ms) < len(full.chunk_ns)
        outcome, ended_ms = (Outcome.CANCELLED, 1000 * end_s) if is_cut else (Outcome.OK, None)
        kept.append(request(full.planned_ns / 1e6, chunks_ms, ended=ended_ms, outcome=outcome, index=full.index))
    return kept


def window_of(length_s: float = LENGTH_S) -> Window:
    """The window after the queue has filled."""
    return Window(int(WARM_S * 1e9), int((WARM_S + length_s) * 1e9))
