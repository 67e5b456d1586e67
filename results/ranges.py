"""Ranges that the numbers of telemetry can have; what lies outside is no reading, and is left out with the reason.

Exporters, drivers and pages show blanks as numbers: 9223372036854775794 of DCGM's integers, 140737488355328 of its
floats, 4294967295 of NVML's. One table serves the writer of samples and their reader, so that what was stored can be
read.
"""

import msgspec

from bakeoff.results.records import TelemetryRecord

_PIB, _TIB = 1 << 50, 1 << 40
_BY_SUFFIX: tuple[tuple[str, float, float], ...] = (
    ("_share", 0.0, 1.05),  # readings of two counters may differ by a tick
    ("_w", 0.0, 20_000.0),
    ("_j", 0.0, 1e13),
    ("_c", -100.0, 300.0),
    ("_mhz", 0.0, 100_000.0),
    ("_errors", 0.0, 1e12),
    ("_s", -1e12, 1e12),
    ("_bytes", 0.0, 1e18),
)
"""Smallest and largest value by the unit in a name."""
_OF_GPUS = {"memory_used_bytes": (0.0, 8.0 * _TIB), "memory_total_bytes": (0.0, 8.0 * _TIB)}
_HOST_BYTES = (0.0, float(_PIB))
_ANY = (-1e18, 1e18)
_MOST_DIGITS = 40
"""Of a number that is shown; JSON has integers that no float can hold."""


def within_range(record: TelemetryRecord) -> TelemetryRecord:
    """The sample without values that nothing can have; the same one if there are none."""
    wrong = {
        name: value
        for name, value in record.values.items()
        if isinstance(value, int | float) and not _is_possible(record.source, name, value)
    }
    if not wrong:
        return record
    reasons = {name: f"the source shows {_shown(value)}, which it cannot have" for name, value in wrong.items()}
    return msgspec.structs.replace(
        record, values=record.values | dict.fromkeys(wrong), reasons=record.reasons | reasons
    )  # fmt: skip


def _shown(value: float) -> str:
    digits = str(value)
    return f"{value:g}" if len(digits) <= _MOST_DIGITS else f"a number of {len(digits)} digits"


def _is_possible(source: str, name: str, value: float) -> bool:
    low, high = _range_of(source, name)
    return low <= value <= high


def _range_of(source: str, name: str) -> tuple[float, float]:
    if source.startswith(("gpu", "exporter of gpu")) and name in _OF_GPUS:
        return _OF_GPUS[name]
    if source in {"host", "engine", "client"} and name.endswith("_bytes"):
        return _HOST_BYTES
    return next(((low, high) for suffix, low, high in _BY_SUFFIX if name.endswith(suffix)), _ANY)
