"""The engine's view of one engine at one load, over its valid trials."""

from collections.abc import Mapping, Sequence

import msgspec

from results.metrics.values import Value
from results.server_view.catalogue import SEEN
from results.statistics.interval import Interval, interval_of


class ServerCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine told.

    Attributes:
        intervals: name → 95 % interval over the valid trials; where it told nothing, of the client's side alone.
        reasons: why the others have no entry; empty where the engine told nothing.
        why: why it told nothing; None where it told something.
    """

    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    why: str | None = None


def server_cell(trials: Sequence[Mapping[str, Value]]) -> ServerCell:
    """Fold the values of a cell's valid trials."""
    if not trials:
        return ServerCell(why="no valid trial")
    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    for name, seen in SEEN.items():
        values = [trial[name] for trial in trials]
        interval = interval_of(seen.unit, [value.value for value in values if value.value is not None])
        if interval is not None:
            intervals[name] = interval
        else:
            reasons[name] = next((value.reason for value in values if value.reason), "")
    if any(name.startswith("server_") for name in intervals):
        return ServerCell(intervals, reasons)
    return ServerCell(intervals, why=reasons["server_e2e_mean_s"])
