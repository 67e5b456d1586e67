"""Hand-made readings of an engine's metrics page."""

from bakeoff.results.records import TelemetryRecord

S = 1_000_000_000


def reading(t_s: float, mark: str | None = None, **values: float | None) -> TelemetryRecord:
    """A successful reading at ``t_s``; the bound of a bucket is spelt ``ttft_s_le_0_5``."""
    named = {name.replace("_le_0_", "_le_0."): value for name, value in values.items()}
    marked = {"mark": mark} if mark else {}
    return TelemetryRecord(round(t_s * S), "server", {"scrape_s": 0.002, **named, **marked})


def failed(t_s: float, why: str, mark: str | None = None) -> TelemetryRecord:
    """A failed reading."""
    marked = {"mark": mark} if mark else {}
    return TelemetryRecord(round(t_s * S), "server", {"scrape_s": None, **marked}, {"scrape_s": why})


def histogram(name: str, total_s: float, count: float, **buckets: float) -> dict[str, float]:
    """The values of one histogram: ``histogram("ttft", 1.2, 4, le_0_1=3)``."""
    return {f"{name}_s_sum": total_s, f"{name}_s_count": count, **{f"{name}_s_{le}": n for le, n in buckets.items()}}
