"""Disturbances of a trial: CPU time used by foreign processes, GPUs with reduced clocks, and errors of GPUs."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from bakeoff.results.metric import Better, Unit
from bakeoff.results.metrics.declaration import Needs, TrialMetric
from bakeoff.results.metrics.series import moved
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import TelemetryRecord, Window

POWER_CAP, SLOWDOWN, POWER_BRAKE = 0x04, 0x08, 0x80
HEAT_OR_BRAKE = 0x20 | 0x40 | POWER_BRAKE
"""Bits of NVML's clock event reasons (nvml.h): power limit; hardware slowdown; thermal slowdown by driver or hardware,
and power brake."""
_HEAT_OR_BRAKE_S = ("heat_driver_s", "heat_hardware_s", "power_brake_s")


class PowerBasis(StrEnum):
    """Where a share of time at the power limit comes from."""

    COUNTED = "counted"
    """Exact, from its counter of that time."""
    SAMPLED = "sampled"
    """Estimated from samples of the bit mask, for a driver without that counter."""


class HeldBack(msgspec.Struct, frozen=True):
    """How long one GPU ran at reduced clocks.

    Attributes:
        gpu: telemetry source of its samples.
        heat_or_brake_s: seconds of thermal slowdown or power brake within the window: from counters or from the
            fraction of samples with those bits, whichever is larger.
        power_capped_share: fraction of the window at the power limit.
        power_basis: where that share comes from.
        slowed_share: fraction of samples with a slowdown by hardware, which no counter counts.
    """

    gpu: str
    heat_or_brake_s: float
    power_capped_share: float
    power_basis: PowerBasis
    slowed_share: float = 0.0


class GpuErrors(msgspec.Struct, frozen=True):
    """Errors of one GPU during a trial.

    Attributes:
        gpu: telemetry source of its samples.
        xids: numbers of the XID errors that the driver reported, each once.
        uncorrected: memory errors that ECC detected and could not correct.
        corrected: memory errors that ECC corrected.
        repair_pending: whether faulty memory is replaced at the next reset.
        shares_chip: whether this is one of several MIG slices, whose memory errors are not distinguished.
    """

    gpu: str
    xids: list[int]
    uncorrected: int
    corrected: int
    repair_pending: bool
    shares_chip: bool = False


def foreign_cpu_share(telemetry: Sequence[TelemetryRecord], window: Window) -> Value:
    """Fraction of all cores' time in the window used by other processes: 1 − (unused + own) / all.

    Both counters are cumulative, so even short-lived foreign processes count.
    """
    records = [record for record in telemetry if record.source == "cpu"]
    cores = next((cores for record in records if isinstance(cores := record.values.get("cores"), int)), None)
    if window.length_s <= 0:
        return absent("the window is empty")
    unused, own = moved(records, "unused_s", window), moved(records, "own_s", window)
    if unused.value is None or own.value is None:
        return own if own.value is None else unused
    if not cores:
        return absent("the number of cores is unknown")
    return Value(max(0.0, 1 - (unused.value + own.value) / (cores * window.length_s)))


def held_back(telemetry: Sequence[TelemetryRecord], window: Window) -> list[HeldBack]:
    """Return each sampled GPU's time at reduced clocks.

    The driver's counters, where available, also cover the time between two samples of the mask.
    """
    return [_held_back(gpu, records, window) for gpu, records in _by_gpu(telemetry)]


def gpu_errors(telemetry: Sequence[TelemetryRecord]) -> list[GpuErrors]:
    """Return the errors of each sampled GPU over the whole trial, ramp and tail included.

    An error before the window may have damaged what the window measured.
    """
    return [
        GpuErrors(
            gpu=gpu,
            xids=sorted({round(xid) for xid in _numbers(records, "xid")}),
            uncorrected=_growth(_numbers(records, "ecc_uncorrected_errors")),
            corrected=_growth(_numbers(records, "ecc_corrected_errors")),
            repair_pending=any(_numbers(records, "memory_repair_pending")),
            shares_chip=any(_numbers(records, "shares_chip")),
        )
        for gpu, records in _by_gpu(telemetry)
    ]


def _by_gpu(telemetry: Sequence[TelemetryRecord]) -> list[tuple[str, list[TelemetryRecord]]]:
    gpus = sorted({record.source for record in telemetry if record.source.startswith("gpu")})
    return [(gpu, [record for record in telemetry if record.source == gpu]) for gpu in gpus]


def _numbers(records: Sequence[TelemetryRecord], name: str) -> list[float]:
    return [value for record in records if isinstance(value := record.values.get(name), int | float)]


def _growth(counter: Sequence[float]) -> int:
    return max(0, round(counter[-1] - counter[0])) if counter else 0


def _held_back(gpu: str, records: Sequence[TelemetryRecord], window: Window) -> HeldBack:
    def masked_share(bits: int) -> float:
        return sum(bool(mask & bits) for mask in masks) / len(masks) if masks else 0.0

    sampled = [record.values.get("throttle_reasons") for record in records if window.holds(record.t_ns)]
    masks = [mask for mask in sampled if isinstance(mask, int)]
    counted = [moved(records, name, window).value for name in _HEAT_OR_BRAKE_S]
    if counted == [None] * len(counted):  # an older driver
        counted = [moved(records, "heat_limit_s", window).value]
    capped_s = moved(records, "power_cap_s", window).value
    capped = masked_share(POWER_CAP) if capped_s is None else capped_s / window.length_s
    return HeldBack(
        gpu=gpu,
        heat_or_brake_s=max(sum(held_s or 0.0 for held_s in counted), masked_share(HEAT_OR_BRAKE) * window.length_s),
        power_capped_share=min(1.0, capped),
        power_basis=PowerBasis.SAMPLED if capped_s is None else PowerBasis.COUNTED,
        slowed_share=masked_share(SLOWDOWN),
    )


METRICS = (
    TrialMetric(
        name="foreign_cpu_share",
        title="foreign load",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition="share of the time of all cores, over the window, that neither the engine nor the harness used",
        observation="a reading of the cores' counters",
        needs=Needs.TELEMETRY,
        of=lambda data: foreign_cpu_share(data.telemetry, data.window),
        count=lambda data: sum(record.source == "cpu" and data.window.holds(record.t_ns) for record in data.telemetry),
    ),
)
