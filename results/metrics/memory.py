"""Peak memory of the engine: of its process tree on the host, and of the GPUs."""

from collections.abc import Iterable, Sequence

from results.metrics.values import Value, absent
from results.records import TelemetryRecord


def peak_host_bytes(telemetry: Sequence[TelemetryRecord]) -> Value:
    """Largest resident set of the engine's process tree, shared pages counted once per process."""
    return _peak((record for record in telemetry if record.source == "engine"), "rss_bytes", "the engine's process")


def peak_gpu_bytes(telemetry: Sequence[TelemetryRecord]) -> Value:
    """Largest sum over GPUs of the memory in use at one instant (driver reserve included)."""
    per_instant: dict[int, float] = {}
    for record in telemetry:
        used = record.values.get("memory_used_bytes")
        if record.source.startswith("gpu") and isinstance(used, int | float):
            per_instant[record.t_ns] = per_instant.get(record.t_ns, 0.0) + used
    if not per_instant:
        reasons = (record.reasons.get("nvml") for record in telemetry if record.source == "sampler")
        return absent(next((reason for reason in reasons if reason), "no GPU was sampled"))
    return Value(max(per_instant.values()))


def _peak(records: Iterable[TelemetryRecord], name: str, what: str) -> Value:
    values = [value for record in records if isinstance(value := record.values.get(name), int | float)]
    return Value(float(max(values))) if values else absent(f"{what} was not sampled")
