"""Coarse clocks: spread the arrivals of one tick over it.

The conversation trace of Mooncake has a stamp every 3 seconds, ± 3 ms, with up to 28 requests each. Sent
unchanged, they would be artificial bursts.
"""

from collections.abc import Iterator
from itertools import chain, groupby, islice, pairwise
from operator import itemgetter
from typing import TypeVar

from bakeoff.workloads.rng import Rng

T = TypeVar("T")
_PEEKED_ROWS, _PEEKED_STAMPS = 256, 4
"""Rows and distinct stamps needed to detect a tick."""
MAX_ROWS_A_TICK = 100_000
"""Limit on the rows of one tick, which are in memory at once."""
_LEAST_ROWS = 8
_ROWS_A_STAMP = 2
_JITTER = 0.01


class TooManyRows(Exception):
    """More than ``MAX_ROWS_A_TICK`` rows have one time."""


def tick_s(times_s: list[float]) -> float | None:
    """The tick of a coarse clock, from ascending stamps; None for a fine clock.

    A clock is coarse if there are at least 8 stamps, at least two per distinct stamp on average, and every gap between
    distinct stamps is within 1 % of a multiple of the smallest gap, which is the tick.
    """
    distinct = sorted(set(times_s))
    if len(times_s) < max(_LEAST_ROWS, _ROWS_A_STAMP * len(distinct)) or len(distinct) < 2:
        return None
    gaps_s = [after - before for before, after in pairwise(distinct)]
    tick = min(gaps_s)
    return tick if all(abs(gap_s - round(gap_s / tick) * tick) <= _JITTER * gap_s for gap_s in gaps_s) else None


def spread(rows: Iterator[tuple[float, T]], rng: Rng) -> Iterator[tuple[float, T]]:
    """Spread the rows of each tick uniformly over it, in their order; times are in seconds and not decreasing.

    Rows are unchanged if the first 256, or more until there are four distinct stamps, show no tick.

    Raises:
        TooManyRows: more than ``MAX_ROWS_A_TICK`` rows have one time.
    """
    head: list[tuple[float, T]] = []
    stamps = set[float]()
    for row in islice(rows, MAX_ROWS_A_TICK):
        head.append(row)
        stamps.add(row[0])
        if len(head) >= _PEEKED_ROWS and len(stamps) >= _PEEKED_STAMPS:
            break
    tick = tick_s([time_s for time_s, _ in head])
    if tick is None:
        yield from chain(head, rows)
        return
    waiting: list[tuple[float, T]] = []
    for _, group in groupby(chain(head, rows), key=itemgetter(0)):
        current = list(islice(group, MAX_ROWS_A_TICK + 1))
        if len(current) > MAX_ROWS_A_TICK:
            raise TooManyRows(f"more than {MAX_ROWS_A_TICK} rows are at {current[0][0]:g} s")
        yield from _spread_one(waiting, current[0][0], tick, rng)
        waiting = current
    yield from _spread_one(waiting, float("inf"), tick, rng)


def _spread_one(rows: list[tuple[float, T]], next_s: float, tick: float, rng: Rng) -> Iterator[tuple[float, T]]:
    if rows:
        begin_s = rows[0][0]
        length_s = min(tick, next_s - begin_s)
        offsets_s = sorted(rng.uniform() * length_s for _ in rows)
        yield from ((begin_s + offset_s, row) for offset_s, (_, row) in zip(offsets_s, rows, strict=True))
