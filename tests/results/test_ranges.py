"""Values of telemetry that nothing can have."""

from pathlib import Path

import pytest

from bakeoff.results.files.jsonl import Appender
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.ranges import within_range
from bakeoff.results.records import TelemetryRecord


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        ("gpu0@host:9400", "memory_used_bytes", 9223372036854775794 * 2**20),  # DCGM's blank of 64 bits
        ("gpu0@host:9400", "memory_used_bytes", 2147483632 * 2**20),  # of 32 bits
        ("gpu0", "memory_used_bytes", 2.0**44),
        ("exporter of gpu0", "power_w", 140737488355328.0),  # of floats
        ("gpu0", "power_w", 4294967.295),  # milliwatts
        ("gpu0", "utilization_gpu_share", 4294967295 * 0.01),
        ("gpu0", "temperature_c", 2147483632.0),
        ("gpu0", "clock_sm_mhz", 4294967295.0),
        ("gpu0", "energy_j", 1.8446744073709552e16),
        ("server", "kv_usage_share", 40.0),
        ("server", "output_tokens_total", float("inf")),
        ("host", "memory_available_bytes", -1.0),
    ],
)
def test_what_nothing_can_have_is_left_out_with_the_reason(source: str, name: str, value: float):
    kept = within_range(TelemetryRecord(1, source, {name: value, "other": 1.0}))
    assert kept.values == {name: None, "other": 1.0}
    assert "cannot have" in kept.reasons[name]


def test_what_machines_have_stays():
    for values in (
        {"power_w": 1000.0, "memory_used_bytes": 141 * 2**30, "utilization_gpu_share": 1.0, "energy_j": 5e9},
        {"cpu_share": 1.004, "memory_available_bytes": 2**44, "own_s": 1e6, "mark": "before"},
    ):
        record = TelemetryRecord(1, "gpu0", values)
        assert within_range(record) is record


def test_a_stored_blank_costs_no_run(tmp_path: Path):
    """As an earlier version wrote it."""
    folder = TrialFolder(tmp_path)
    with Appender(folder.telemetry_log) as log:
        log.append(
            TelemetryRecord(1, "gpu0@host:9400", {"memory_used_bytes": 9223372036854775794 * 2**20, "power_w": 1})
        )
    (record,) = folder.read_telemetry().records
    assert record.values == {"memory_used_bytes": None, "power_w": 1}
