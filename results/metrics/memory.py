"""Peak memory of the engine: its process tree on the host, and the GPUs."""

from collections.abc import Iterator, Sequence

from bakeoff.results.metric import Better, Role, Span, Unit
from bakeoff.results.metrics.declaration import Needs, TrialData, TrialMetric
from bakeoff.results.metrics.series import unread_exporter
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import TelemetryRecord


def peak_host_bytes(telemetry: Sequence[TelemetryRecord]) -> Value:
    """Peak resident set of the engine's process tree, counting shared pages once.

    RSS counts a shared page once per process. The excess (RSS − PSS) is read once after the load, because it is too
    expensive to sample; without that reading only a single-process engine has a number.
    """
    samples = [record for record in telemetry if record.source == "engine"]
    peak = max(_numbers(samples, "rss_bytes"), default=None)
    if peak is None:
        return absent("the engine's process was not sampled")
    after = [record for record in telemetry if record.source == "memory"]
    pss, rss = next(_numbers(after, "pss_bytes"), None), next(_numbers(after, "rss_bytes"), None)
    if pss is not None and rss is not None:
        return Value(peak - max(0.0, rss - pss))
    if max(_numbers(samples, "processes"), default=1) <= 1:
        return Value(peak)
    reason = next((record.reasons["pss_bytes"] for record in after if "pss_bytes" in record.reasons), "it was not read")
    return absent(f"the memory shared between the engine's processes is unknown: {reason}")


def peak_gpu_bytes(telemetry: Sequence[TelemetryRecord]) -> Value:
    """Peak of the memory in use summed over GPUs at one instant (driver reserve included).

    GPUs of several hosts are not read at one instant; the peaks of the hosts are added.
    """
    if (unread := unread_exporter(telemetry)) is not None:
        return absent(unread)
    per_instant: dict[str, dict[int, float]] = {}
    for record in telemetry:
        used = record.values.get("memory_used_bytes")
        if record.source.startswith("gpu") and isinstance(used, int | float):
            of_host = per_instant.setdefault(record.source.partition("@")[2], {})
            of_host[record.t_ns] = of_host.get(record.t_ns, 0.0) + used
    if not per_instant:
        names = {"memory_used_bytes", "nvml"}  # of a GPU, and of the sampler
        reasons = (record.reasons[name] for record in telemetry for name in names & set(record.reasons))
        return absent(next(reasons, "no GPU was sampled"))
    return Value(sum(max(of_host.values()) for of_host in per_instant.values()))


def _numbers(records: Sequence[TelemetryRecord], name: str) -> Iterator[float]:
    return (float(value) for record in records if isinstance(value := record.values.get(name), int | float))


def _num_host_samples(data: TrialData) -> int:
    return sum(record.source == "engine" and record.values.get("rss_bytes") is not None for record in data.telemetry)


def _num_gpu_instants(data: TrialData) -> int:
    return len({record.t_ns for record in data.gpu_telemetry if record.values.get("memory_used_bytes") is not None})


METRICS = (
    TrialMetric(
        name="peak_host_bytes",
        title="peak memory",
        in_full="peak memory of the host",
        unit=Unit.BYTES,
        better=Better.LOWER,
        definition="largest resident set of the engine's process tree, what its processes share counted once",
        observation="a sample of the engine's process tree",
        span=Span.TRIAL,
        roles=frozenset({Role.HEADLINE}),
        needs=Needs.TELEMETRY,
        of=lambda data: peak_host_bytes(data.telemetry),
        count=_num_host_samples,
    ),
    TrialMetric(
        name="peak_gpu_bytes",
        title="peak GPU memory",
        in_full="peak memory of the GPUs",
        unit=Unit.BYTES,
        better=Better.LOWER,
        definition="largest memory in use over all GPUs at one instant",
        observation="a sample of all GPUs",
        span=Span.TRIAL,
        needs=Needs.TELEMETRY,
        of=lambda data: peak_gpu_bytes(data.telemetry),
        count=_num_gpu_instants,
    ),
)
