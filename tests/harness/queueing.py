"""Simulates a first-come-first-served queue before a server that stalls: the TTFTs that a client must measure."""

import heapq
from collections.abc import Sequence


def simulated_ttfts_s(
    arrivals_s: Sequence[float], *, cap: int, ttft_s: float, total_s: float, stall: tuple[float, float]
) -> list[float]:
    """TTFT of each request, from its arrival.

    Args:
        arrivals_s: planned times, rising.
        cap: requests in service at a time; the others wait in order.
        ttft_s: from the start of service to the first token.
        total_s: from the start of service to its end.
        stall: start and end of the time in which the server writes nothing; output due in it is written at its end.
    """

    def written_s(due_s: float) -> float:
        return stall[1] if stall[0] <= due_s < stall[1] else due_s

    free_s = [0.0] * cap
    ttfts = []
    for arrival_s in arrivals_s:
        start_s = max(arrival_s, heapq.heappop(free_s))
        heapq.heappush(free_s, written_s(start_s + total_s))
        ttfts.append(written_s(start_s + ttft_s) - arrival_s)
    return ttfts
