"""An index of runs that were never measured: one run a night, with the values that a test gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bakeoff.results.index import CellFacts, Query, RunFacts, Spread
from bakeoff.results.log.run_log import Source
from bakeoff.results.records import RunStatus

Cells = Mapping[str, float | None]
"""Metric → value; None where no trial of that night was valid."""


def night(number: int, metrics: Cells, *, engine: str = "only", machine: str = "here") -> RunFacts:
    """One run at one load."""
    spreads = {name: Spread(value, 3) for name, value in metrics.items() if value is not None}
    return RunFacts(
        id=f"night-{number:03}",
        name="nightly",
        status=RunStatus.COMPLETE,
        created_utc=f"2026-01-{1 + number // 24:02}T{number % 24:02}:00:00+00:00",
        source=Source(f"{number:09x}abc", "main"),
        engines=[engine],
        levels=["c=4"],
        cells=[CellFacts(engine, "c=4", machine, "chat", "traffic", "weights", "conditions", spreads)]
        if spreads
        else [],
    )


def nights(metric: str, values: Sequence[float | None]) -> list[RunFacts]:
    """One run for each value."""
    return [night(number, {metric: value}) for number, value in enumerate(values)]


class Nights:
    """Replaces :class:`bakeoff.results.index.Index`."""

    def __init__(self, runs: Sequence[RunFacts]) -> None:
        self.root = Path("runs")
        self._runs = runs

    def __enter__(self) -> "Nights":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def refresh(self) -> None:
        """All runs are folded."""

    def choices(self) -> dict[str, list[str]]:
        return {"name": ["nightly"]}

    def runs(self, query: Query) -> list[RunFacts]:
        """Newest first, as in the index."""
        return list(self._runs)[::-1][: query.limit]

    def left_out(self) -> list[str]:
        return []

    def newest_name(self) -> str:
        return "nightly"
