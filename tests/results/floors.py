"""Stores noise floors beside runs of a test."""

from pathlib import Path

from bakeoff.results import load
from bakeoff.results.compare.comparability import series_of
from bakeoff.results.compare.floor import FloorCell, store_floors
from bakeoff.results.metrics import CATALOGUE


def with_floor(path: Path, bound: float = 0.005) -> Path:
    """Store a floor of half a percent beside a run, for all its metrics at all its loads; returns the run's folder."""
    run = load(path)
    series = {series_of(run.manifest, trial.record): None for trial in run.finished}
    store_floors(path.parent, [FloorCell(key, [], 6.0, dict.fromkeys(CATALOGUE, bound)) for key in series])
    return path
