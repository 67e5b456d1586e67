"""``servegen``: requests made from ServeGen's client tables (Alibaba Cloud Model Studio, Apache-2.0).

Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving in Production", NSDI
2026. The tables say how each client's requests come, window by window, and how long they are; rows are drawn from them
by seed. Clients keep their own streams of draws, so that leaving some out changes nothing for the others.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from workloads.rng import Rng, Seed
from workloads.traces.reading import bad
from workloads.traces.row import TraceRow
from workloads.traces.servegen_tables import Client, Lengths, LengthTables, Window, clients, windows


class ServeGen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of ``chunk-*-trace.csv`` and ``chunk-*-dataset.json``, plain or gzip."""

    path: str
    """The folder."""
    start_s: float = 0.0
    """Where in the recording to begin; 43200 is noon of its first day."""
    duration_s: float | None = None
    """How much of it, in seconds; all that follows if not given."""
    clients: int | None = None
    """Only so many clients, those with the most requests in that time; all if not given."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < math.inf:
            raise ValueError(f"start_s must be at least 0, not {self.start_s}")
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise ValueError(f"duration_s must be above 0, not {self.duration_s}")
        if self.clients is not None and self.clients < 1:
            raise ValueError(f"clients must be at least 1, not {self.clients}")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """See :class:`workloads.traces.row.Trace`."""
        everyone = self._active()
        chosen = everyone[: self.clients]
        tables = [LengthTables(active.client) for active in chosen]
        pool = _Pool(everyone) if not all(tables) else None
        draws = [seed.draws("servegen", active.client.name, "lengths") for active in chosen]
        arrivals = (self._arrivals(i, active, seed) for i, active in enumerate(chosen))
        first_s: float | None = None
        for time_s, i in heapq.merge(*arrivals):
            first_s = time_s if first_s is None else first_s
            own = tables[i] or pool
            assert own is not None  # there is a pool where a client has no table
            inputs, outputs = own.at(time_s) if isinstance(own, LengthTables) else own.at(time_s, draws[i])
            yield TraceRow(time_s - first_s, inputs.sample(draws[i]), outputs.sample(draws[i]))
        if first_s is None:
            raise bad(self.path, None, "has so few requests in that time that this seed makes none; ask for more of it")

    def notes(self) -> list[str]:
        """That requests are generated, and how."""
        return [
            "servegen: requests drawn by seed from recorded client tables",
            "servegen: a client's gaps have its window's fitted family and shape, and its recorded rate",
            "servegen: input and output lengths are drawn apart, by the client's nearest table, else by another's",
        ]

    def _active(self) -> list["_Active"]:
        """Clients that send anything in the time that was asked for, those with the most requests first."""
        end_s = math.inf if self.duration_s is None else self.start_s + self.duration_s
        found, recorded_s = list[_Active](), 0.0
        for client in clients(self.path):
            table = windows(client)
            recorded_s = max(recorded_s, table[-1].end_s)
            cut = [cut for window in table if (cut := window.between(self.start_s, end_s)) and cut.rate_per_s]
            if cut:
                found.append(_Active(client, cut))
        if not found:
            what = f"has no requests from {self.start_s:g} s on for {end_s - self.start_s:g} s; it was recorded for"
            raise bad(self.path, None, f"{what} {recorded_s:g} s; change start_s or duration_s")
        return sorted(found, key=lambda active: -active.requests)

    def _arrivals(self, i: int, active: "_Active", seed: Seed) -> Iterator[tuple[float, int]]:
        rng = seed.draws("servegen", active.client.name, "arrivals")
        return ((time_s, i) for time_s in renewal(active.windows, rng))


class _Active(msgspec.Struct, frozen=True):
    client: Client
    windows: list[Window]

    @property
    def requests(self) -> float:
        """How many to expect."""
        return math.fsum(window.rate_per_s * (window.end_s - window.start_s) for window in self.windows)


class _Pool:
    """The lengths of all clients that have any, each in proportion to its requests."""

    def __init__(self, everyone: list[_Active]) -> None:
        both = [(LengthTables(active.client), active.requests) for active in everyone]
        self._tables = [tables for tables, _ in both if tables]
        self._cumulative = list(accumulate(requests for tables, requests in both if tables))
        if not self._tables:
            raise bad(everyone[0].client.dataset, None, "holds no lengths, nor does any other client's file")

    def at(self, time_s: float, rng: Rng) -> tuple[Lengths, Lengths]:
        """Input and output lengths of a client drawn at random."""
        drawn = bisect_right(self._cumulative, rng.uniform() * self._cumulative[-1])
        return self._tables[min(drawn, len(self._tables) - 1)].at(time_s)


def renewal(windows: list[Window], rng: Rng) -> Iterator[float]:
    """Arrivals in seconds from the beginning of the recording, in windows that rise and have a rate above 0.

    A gap that a window's end cuts goes on in the next one, at that one's pace: were it drawn anew, windows with few
    requests would not get their rate.
    """
    left: float | None = None
    for window in windows:
        time_s = window.start_s
        left = window.first_gap(rng) if left is None else left
        while (arrival_s := time_s + left / window.rate_per_s) < window.end_s:
            yield arrival_s
            time_s, left = arrival_s, window.gap(rng)
        left = max(0.0, left - (window.end_s - time_s) * window.rate_per_s)
