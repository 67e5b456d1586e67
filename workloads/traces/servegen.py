"""``servegen``: requests drawn from ServeGen's client tables (Alibaba Cloud Model Studio, Apache-2.0).

Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving in Production", NSDI
2026. The tables give each client's arrival process, window by window, and length distributions; rows are drawn from
them. Each client has its own stream of random draws, so leaving out some clients does not affect the others.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from bakeoff.workloads.rng import Rng, Seed
from bakeoff.workloads.traces.reading import bad
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.traces.servegen_tables import Client, Lengths, LengthTables, Window, clients, windows


class ServeGen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of ``chunk-*-trace.csv`` and ``chunk-*-dataset.json``, plain or gzip."""

    path: str
    """The folder."""
    start_s: float = 0.0
    """Start within the recording, in seconds; 43200 is noon of its first day."""
    duration_s: float | None = None
    """Length of the extract, in seconds; by default up to the end."""
    clients: int | None = None
    """Number of clients, those with the most requests in the extract; all by default."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < math.inf:
            raise ValueError(f"start_s must be at least 0, not {self.start_s}")
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise ValueError(f"duration_s must be above 0, not {self.duration_s}")
        if self.clients is not None and self.clients < 1:
            raise ValueError(f"clients must be at least 1, not {self.clients}")

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
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
            assert own is not None  # a pool exists if a client has no table
            inputs, outputs = own.at(time_s) if isinstance(own, LengthTables) else own.at(time_s, draws[i])
            yield TraceRow(time_s - first_s, inputs.sample(draws[i]), outputs.sample(draws[i]))
        if first_s is None:
            raise bad(
                self.path, None, "has so few requests in that time that this seed draws none; use a longer extract"
            )

    def notes(self) -> list[str]:
        """How requests are generated."""
        return [
            "servegen: requests drawn from recorded client tables",
            "servegen: a client's gaps have the fitted family and shape of the window, and the recorded rate",
            "servegen: input and output lengths are independent, from the client's nearest table or another client",
        ]

    def _active(self) -> list["_Active"]:
        """Clients with requests in the extract, those with the most requests first."""
        end_s = math.inf if self.duration_s is None else self.start_s + self.duration_s
        active, recorded_s = list[_Active](), 0.0
        for client in clients(self.path):
            table = windows(client)
            recorded_s = max(recorded_s, table[-1].end_s)
            cut = [cut for window in table if (cut := window.between(self.start_s, end_s)) and cut.rate_per_s]
            if cut:
                active.append(_Active(client, cut))
        if not active:
            problem = f"has no requests from {self.start_s:g} s on for {end_s - self.start_s:g} s; it was recorded for"
            raise bad(self.path, None, f"{problem} {recorded_s:g} s; change start_s or duration_s")
        return sorted(active, key=lambda client: -client.requests)

    def _arrivals(self, i: int, active: "_Active", seed: Seed) -> Iterator[tuple[float, int]]:
        rng = seed.draws("servegen", active.client.name, "arrivals")
        return ((time_s, i) for time_s in renewal(active.windows, rng))


class _Active(msgspec.Struct, frozen=True):
    client: Client
    windows: list[Window]

    @property
    def requests(self) -> float:
        """Expected number of requests."""
        return math.fsum(window.rate_per_s * (window.end_s - window.start_s) for window in self.windows)


class _Pool:
    """Lengths of all clients that have any, weighted by their requests."""

    def __init__(self, everyone: list[_Active]) -> None:
        weighted = [(LengthTables(active.client), active.requests) for active in everyone]
        self._tables = [tables for tables, _ in weighted if tables]
        self._cumulative = list(accumulate(requests for tables, requests in weighted if tables))
        if not self._tables:
            raise bad(everyone[0].client.dataset, None, "has no lengths, nor has any other client's file")

    def at(self, time_s: float, rng: Rng) -> tuple[Lengths, Lengths]:
        """Input and output lengths of a client drawn at random."""
        drawn = bisect_right(self._cumulative, rng.uniform() * self._cumulative[-1])
        return self._tables[min(drawn, len(self._tables) - 1)].at(time_s)


def renewal(windows: list[Window], rng: Rng) -> Iterator[float]:
    """Arrivals in seconds from the beginning of the recording.

    ``windows`` must be ascending and have rates above 0. A gap that crosses the end of a window continues at the rate
    of the next. Drawing a new gap instead would give windows with few requests a wrong rate.
    """
    left: float | None = None
    for window in windows:
        time_s = window.start_s
        left = window.first_gap(rng) if left is None else left
        while (arrival_s := time_s + left / window.rate_per_s) < window.end_s:
            yield arrival_s
            time_s, left = arrival_s, window.gap(rng)
        left = max(0.0, left - (window.end_s - time_s) * window.rate_per_s)
