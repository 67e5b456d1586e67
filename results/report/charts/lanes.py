"""Requests on lanes: as many rows as requests were ever in flight at once, not one row per request."""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np


def lanes_of(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A lane for each (start, end): the lowest that is free at the start, so that spans on one lane never overlap."""
    lanes = [0] * len(spans)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, end = spans[i]
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lanes[i] = heappop(free)
        else:
            lanes[i], used = used, used + 1
        heappush(busy, (max(end, start + 1), lanes[i]))
    return lanes


def in_flight(spans: Sequence[tuple[int, int]], start: int, end: int, bins: int) -> list[int]:
    """The largest number in flight within each of ``bins`` equal parts of ``start``…``end``."""
    times = np.array([t for span in spans for t in span], dtype=np.int64)
    steps = np.array([1, -1] * len(spans), dtype=np.int64)
    instants, position = np.unique(times, return_inverse=True)
    changes = np.zeros(len(instants), dtype=np.int64)
    np.add.at(changes, position, steps)  # an arrival at the instant of a departure takes its place
    level = np.cumsum(changes)
    edges = np.linspace(start, end, bins + 1)
    where = np.clip(np.searchsorted(edges, instants, side="right") - 1, 0, bins - 1)
    carried = 0
    peaks: list[int] = []
    for i in range(bins):
        inside = level[where == i]
        peaks.append(int(max(carried, inside.max(initial=0))))
        carried = int(inside[-1]) if len(inside) else carried
    return peaks
